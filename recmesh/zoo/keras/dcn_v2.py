"""DCN-v2 (Wang et al., WWW 2021): a cross network beside or below a deep one."""

from keras import layers

from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.keras.layers import Features, mlp, train
from recmesh.zoo.params import with_defaults


def main(job: Job) -> None:
    """Trains it on the job's data."""
    params = with_defaults(job.params, DEFAULTS["dcn_v2"])
    features = Features(job, params)
    x = first = features.flat
    width = int(first.shape[-1])
    for level in range(params["cross_layers"]):           # eq. 1; with a rank eq. 2
        thin = x
        if params["cross_rank"]:
            thin = layers.Dense(params["cross_rank"], use_bias=False, name=f"cross_{level}_in")(x)
        x = first * layers.Dense(width, name=f"cross_{level}")(thin) + x
    if params["structure"] == "parallel":
        deep = mlp(first, params["hidden"], dropout=params["dropout"])
        x = layers.Concatenate()([x, deep])
    else:
        x = mlp(x, params["hidden"], dropout=params["dropout"])
    train(job, features.inputs, layers.Dense(len(job.labels), name="head")(x))
