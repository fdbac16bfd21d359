"""Models to be split: of the zoo, exported as jobs export them, and two that recmesh has not made.

What a request sends depends on the features and the dimensions, not on the tables' rows: tables are small.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, IDS = 512, 200
SINGLE, BAGS, SEQUENCES, DENSE = 16, 3, 1, 8
LONGEST = 50
DIM = 16
ZOO: Mapping[str, tuple[str, dict[str, Any]]] = {
    "wide_deep": ("wide_deep", {"embedding_dim": DIM, "hidden": [512, 256, 128]}),
    "xdeepfm": ("xdeepfm", {"embedding_dim": DIM, "hidden": [400, 400], "cin": [100, 100]}),
    "dcn_v2": ("torch_dcn_v2", {"embedding_dim": DIM, "hidden": [512, 256], "cross_layers": 3}),
    "mmoe": ("mmoe", {"embedding_dim": DIM, "experts": 8, "expert_hidden": [256, 128], "tower_hidden": [64]}),
}
"""By the bench's name: the zoo's, and its parameters. The first two are TensorFlow's, the others torch's."""


def makers(*, quick: bool) -> dict[str, Callable[[Path], None]]:
    """How to write each model into a folder."""
    names = ("dcn_v2", "wide_deep") if quick else tuple(ZOO)
    made: dict[str, Callable[[Path], None]] = {name: _zoo(name) for name in names}
    return {**made, "dlrm_attention": dlrm_attention, "foreign_keras": foreign_keras}


def _zoo(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from recmesh import local_job
        from recmesh.spec.job import Model
        from recmesh.trainer.usercode import resolve

        zoo, params = ZOO[name]
        train = resolve(Model.model_validate({"zoo": zoo}))
        file = folder.parent / f"{name}.parquet"
        labels = ["click", "buy"] if name == "mmoe" else []
        features: list[dict[str, Any]] = [{"name": f"c{n}"} for n in range(SINGLE)]
        features += [{"name": f"bag{n}", "kind": "bag"} for n in range(BAGS)]
        features += [{"name": f"past{n}", "kind": "sequence", "max_length": LONGEST} for n in range(SEQUENCES)]
        features += [{"name": f"x{n}", "kind": "dense"} for n in range(DENSE)]
        _rows(file)
        job = local_job({
            "name": "split", "model": {"zoo": zoo, "params": params},
            "data": {"source": {"files": [str(file)]}, "labels": labels, "label": "click", "features": features},
            "training": {"batch_size": ROWS, "seed": 1, "optimizer": {"kind": "adagrad", "lr": 0.05}},
        })  # fmt: skip
        train(job)
        job.export(folder)

    return make


def _rows(file: Path) -> None:
    rng = np.random.default_rng(7)
    columns: dict[str, Any] = {f"c{n}": rng.integers(0, IDS, ROWS) for n in range(SINGLE)}
    lists = [*(f"bag{n}" for n in range(BAGS)), *(f"past{n}" for n in range(SEQUENCES))]
    for name in lists:
        several = [rng.integers(0, IDS, rng.integers(1, LONGEST)).tolist() for _ in range(ROWS)]
        columns[name] = pa.array(several, pa.list_(pa.int64()))
    columns |= {f"x{n}": rng.standard_normal(ROWS) for n in range(DENSE)}
    columns["click"], columns["buy"] = rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)
    pq.write_table(pa.table(columns), file)


def dlrm_attention(folder: Path) -> None:
    """A DLRM whose history of items attends to itself, in plain torch: EmbeddingBag, Embedding, a transformer layer."""
    import torch
    from torch import nn

    width = 64

    class Model(nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(1000, width)
            self.single = nn.ModuleList(nn.Embedding(IDS, width) for _ in range(SINGLE))
            self.bags = nn.ModuleList(nn.EmbeddingBag(IDS, width, mode="mean") for _ in range(BAGS))
            self.history = nn.TransformerEncoderLayer(width, 4, 256, dropout=0.0, batch_first=True)
            self.bottom = nn.Sequential(nn.Linear(DENSE, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
            vectors = SINGLE + BAGS + 2
            rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
            self.register_buffer("rows", rows)
            self.register_buffer("columns", columns)
            self.top = nn.Sequential(nn.Linear(width + len(rows), 512), nn.ReLU(), nn.Linear(512, 1))

        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            past = self.items(inputs["past"])
            mask = (torch.arange(LONGEST) < inputs["past.lengths"].unsqueeze(1)).float().unsqueeze(-1)
            attended = (self.history(past * mask) * mask).sum(1) / mask.sum(1).clamp(min=1.0)
            below = self.bottom(inputs["dense"])
            looked = [table(inputs["ids"][:, n]) for n, table in enumerate(self.single)]
            looked += [table(inputs[f"bag{n}"]) for n, table in enumerate(self.bags)]
            vectors = torch.stack([below, attended, *looked], dim=1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.rows, self.columns]
            return {"predictions": torch.sigmoid(self.top(torch.cat([below, products], dim=1))).squeeze(1)}

    torch.manual_seed(1)
    long: dict[str, Any] = {"dtype": torch.int64}
    example = {
        "past": torch.ones(3, LONGEST, **long), "past.lengths": torch.ones(3, **long),
        "ids": torch.ones(3, SINGLE, **long), "dense": torch.zeros(3, DENSE),
        **{f"bag{n}": torch.ones(3, 20, **long) for n in range(BAGS)},
    }  # fmt: skip
    batch = torch.export.Dim("batch", min=1)
    model = Model().eval().requires_grad_(False)
    with torch.no_grad():
        program = torch.export.export(
            model, (example,), dynamic_shapes=({name: {0: batch} for name in example},), strict=False
        )
    folder.mkdir()
    torch.export.save(program, str(folder / "model.pt2"))


def foreign_keras(folder: Path) -> None:
    """What a Keras user exports, with strings: StringLookup, Hashing, CategoryEncoding, pooled histories, attention."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    city, genres = keras.Input((1,), dtype="string", name="city"), keras.Input((8,), dtype="string", name="genres")
    user = keras.Input((1,), dtype="int64", name="user")
    history = keras.Input((LONGEST,), dtype="int64", name="history")
    numbers = keras.Input((DENSE,), name="numbers")
    known = layers.StringLookup(vocabulary=["a", "b", "c", "red", "blue"])
    words = layers.Embedding(6, 32)(known(genres))
    looked = layers.Embedding(1000, 32)(history)
    attended = layers.MultiHeadAttention(2, 16)(words, words)
    parts = [
        layers.Flatten()(layers.Embedding(6, 32)(known(city))),
        layers.Flatten()(layers.Embedding(100, 32)(layers.Hashing(100)(city))),
        layers.Flatten()(layers.Embedding(1000, 32)(user)),
        layers.CategoryEncoding(6, output_mode="multi_hot")(known(genres)),
        layers.GlobalAveragePooling1D()(looked),
        layers.GlobalAveragePooling1D()(attended),
        layers.Normalization(mean=0.5, variance=2.0)(numbers),
    ]
    x = layers.Concatenate()(parts)
    for units in (256, 128):
        x = layers.BatchNormalization()(layers.Dense(units, activation="relu")(x))
    model = keras.Model([city, genres, user, history, numbers], layers.Dense(1, activation="sigmoid")(x))
    model.export(str(folder / "saved_model"), verbose=False)
