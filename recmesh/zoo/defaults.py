"""What `model.params` may change in each model of the zoo; known without its framework, so that submit can check it."""

from collections.abc import Mapping
from typing import Any

_INPUTS: Mapping[str, Any] = {
    "embedding_dim": 16,
    "embedding_init": 0.0,      # rows start uniformly within ± this; 0: a quarter of 1/sqrt(embedding_dim)
    "embedding_dropout": 0.0,   # share of the looked-up numbers; first-order weights are spared
    "dense_norm": False,        # dense columns less their mean, over their deviation: the batch's, averaged for serving
}
_DEEP: Mapping[str, Any] = {**_INPUTS, "hidden": [256, 128], "dropout": 0.0}
_DCN_V2: Mapping[str, Any] = {
    **_DEEP,
    "cross_layers": 3,
    "cross_rank": 0,            # 0: full matrices
    "structure": "parallel",    # parallel | stacked
}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "wide_deep": {**_DEEP, "hidden": [256, 128, 64]},
    "deepfm": _DEEP,
    "xdeepfm": {**_DEEP, "cin": [32, 32]},
    "dcn_v2": _DCN_V2,
    "torch_dcn_v2": _DCN_V2,
    "dlrm": {
        **_INPUTS,
        "bottom": [64],             # ends in a layer of embedding_dim
        "top": [256, 128],
        "dropout": 0.0,
    },
    "mmoe": {**_INPUTS, "experts": 4, "expert_hidden": [64], "tower_hidden": [64], "dropout": 0.0},
    "din": {
        **_INPUTS,
        "candidate": "",            # the single feature of the item to be judged; empty: the first
        "history": "",              # the sequence of items; empty: the first
        "share_table": True,        # candidate and history look up in one table
        "attention_hidden": [36],
        "hidden": [200, 80],
        "dropout": 0.0,
    },
    "mtrm": {
        **_DEEP,                    # of the memory tower
        "adapt_hidden": [64],
        "embedding": "separate",    # separate | shared: whether the towers have tables of their own
        "answer": "corrected",      # corrected | own: the memory's logits plus the adapt tower's, or the latter alone
        "adapt_rate": 1.0,          # the adapt tower's learning rate, in those of training.optimizer
    },
}
"""By `model.zoo`."""
