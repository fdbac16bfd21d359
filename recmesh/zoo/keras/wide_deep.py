"""Wide & Deep (Cheng et al., DLRS 2016): a linear model of the features beside a deep one."""

from keras import layers

from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.keras.layers import Features, mlp, train
from recmesh.zoo.params import with_defaults


def main(job: Job) -> None:
    """Trains it on the job's data."""
    params = with_defaults(job.params, DEFAULTS["wide_deep"])
    features = Features(job, params, linear=True)
    deep = mlp(features.flat, params["hidden"], dropout=params["dropout"])
    logits = layers.Dense(len(job.labels), name="head")(deep) + features.linear
    train(job, features.inputs, logits)
