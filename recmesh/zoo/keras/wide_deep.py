"""Wide & Deep (Cheng et al., DLRS 2016): a linear model of the features beside a deep one."""

from keras import layers

from recmesh.trainer.session import Job
from recmesh.zoo.keras.layers import Features, mlp, train
from recmesh.zoo.params import INPUTS, with_defaults

DEFAULTS = INPUTS | {"hidden": [256, 128, 64], "dropout": 0.0}


def main(job: Job) -> None:
    """Trains it on the job's data."""
    params = with_defaults(job.params, DEFAULTS)
    features = Features(job, params, linear=True)
    deep = mlp(features.flat, params["hidden"], dropout=params["dropout"])
    logits = layers.Dense(len(job.labels), name="head")(deep) + features.linear
    train(job, features.inputs, logits)
