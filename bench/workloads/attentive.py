"""A DLRM with attention between its features, whole and in halves: 3.9 MiB go from CN to HN per request.

One request is one user's 500 items. The sparse half looks up 64 rows of 32 numbers for each; the dense one lets
the features attend to each other and scores the items.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.serving.split import manifest
from recmesh.serving.split.manifest import Batching, Manifest, Stage, TensorInfo

ITEMS, FEATURES, WIDTH, DENSE = 500, 64, 32, 13
ROWS = 200_000
HEADS, HIDDEN = 4, 512
KEY = "attentive/1"

Entry = dict[str, Any]
IDS: Entry = {"name": "ids", "dtype": "int64", "shape": [-1, FEATURES]}
NUMBERS: Entry = {"name": "numbers", "dtype": "float32", "shape": [-1, DENSE]}
FOUND: Entry = {"name": "found", "dtype": "float32", "shape": [-1, FEATURES, WIDTH]}
PREDICTIONS: Entry = {"name": "predictions", "dtype": "float32", "shape": [-1]}
SENT_BYTES = ITEMS * (FEATURES * WIDTH + DENSE) * 4


def inputs(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """One request."""
    random = np.random.default_rng(seed)
    return {
        "ids": random.integers(0, ROWS, (ITEMS, FEATURES)),
        "numbers": random.standard_normal((ITEMS, DENSE), np.float32),
    }


def write(folder: Path) -> Path:
    """The exported model in `folder`, its halves in `folder/split`."""
    import torch
    from torch import nn

    class Dense(nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(WIDTH, 3 * WIDTH)
            self.top = nn.Sequential(
                nn.Linear(FEATURES * WIDTH + DENSE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN // 2), nn.ReLU(),
                nn.Linear(HIDDEN // 2, 1),
            )  # fmt: skip

        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            found = inputs["found"]
            parts = self.mix(found).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            mixed = nn.functional.scaled_dot_product_attention(query, key, value)
            flat = (found + mixed.transpose(1, 2).flatten(-2)).flatten(1)
            return {"predictions": self.top(torch.cat([flat, inputs["numbers"]], 1)).squeeze(-1).sigmoid()}

    class Pre(nn.Module):  # type: ignore[misc]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, WIDTH)

        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"found": self.table(inputs["ids"])}

    class Whole(nn.Module):  # type: ignore[misc]  # as above
        def __init__(self, pre: Pre, dense: Dense) -> None:
            super().__init__()
            self.pre, self.dense = pre, dense

        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            answer: dict[str, torch.Tensor] = self.dense({**self.pre(inputs), "numbers": inputs["numbers"]})
            return answer

    torch.manual_seed(1)
    pre, dense = Pre().eval(), Dense().eval()
    ids, numbers = torch.zeros(3, FEATURES, dtype=torch.int64), torch.zeros(3, DENSE)
    found = torch.zeros(3, FEATURES, WIDTH)
    batch = torch.export.Dim("batch", min=1)

    def save(module: Any, example: dict[str, Any], target: Path, outputs: list[Entry], taken: list[Entry]) -> None:
        target.mkdir(parents=True, exist_ok=True)
        shapes = {name: {0: batch} for name in example}
        program = torch.export.export(module, (example,), dynamic_shapes=(shapes,))
        torch.export.save(program, str(target / "model.pt2"))
        card = {"framework": "torch", "inputs": taken, "outputs": outputs}
        (target / "model.json").write_text(json.dumps(card))

    save(Whole(pre, dense).eval(), {"ids": ids, "numbers": numbers}, folder, [PREDICTIONS], [IDS, NUMBERS])
    save(pre, {"ids": ids}, folder / "split" / "pre", [FOUND], [IDS])
    save(dense, {"found": found, "numbers": numbers}, folder / "split" / "dense", [PREDICTIONS], [FOUND, NUMBERS])
    _describe(folder)
    return folder


def _describe(folder: Path) -> None:
    split = folder / "split"
    pre, dense = (manifest.digest(split / name, "torch") for name in ("pre", "dense"))
    stages = (
        Stage("pre", "cn", "pre", ("ids",), ("found",), pre),
        Stage("dense", "hn", "dense", ("found", "numbers"), ("predictions",), dense),
    )
    entries = (IDS, NUMBERS, FOUND, PREDICTIONS)
    tensors = tuple(
        TensorInfo(str(each["name"]), str(each["dtype"]), tuple(each["shape"]), True, 0) for each in entries
    )
    manifest.save(
        Manifest(
            framework="torch", kind="split", why="cut by hand, at the lookups", stages=stages, tensors=tensors,
            model_sha256=manifest.digest(folder, "torch"), inputs=("ids", "numbers"), outputs=("predictions",),
            batching=Batching(possible=True),
        ),
        split,
    )  # fmt: skip
