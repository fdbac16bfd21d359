"""Tiny models cut by hand: predictions = (table[id] · weights) + x, looked up on the CN, multiplied on the HN.

And one that is not cut, for the partitioner.
"""

import json
from pathlib import Path
from typing import Any

from recmesh.serving.split import manifest
from recmesh.serving.split.manifest import Batching, Manifest, Stage, TensorInfo, Transfer

Entry = dict[str, Any]

X: Entry = {"name": "x", "kind": "dense", "dtype": "float32", "shape": [-1]}
ID: Entry = {"name": "id", "kind": "single", "dtype": "int64", "shape": [-1]}
ROWS: Entry = {"name": "rows", "dtype": "float32", "shape": [-1, 4]}
PREDICTIONS: Entry = {"name": "predictions", "dtype": "float32", "shape": [-1]}
SCORES: Entry = {"name": "scores", "dtype": "float32", "shape": [-1]}
ITEMS = 100


def expected(id_: int, x: float) -> float:
    """What the model answers: the row of an id is four times the id, the weights are 0.5."""
    return 2.0 * id_ + x


def torch_model(folder: Path, *, post: bool = False, serving: dict[str, Any] | None = None) -> Path:
    """The model, exported by torch, and its halves beside it. `post`: x is added on the CN, after the HN."""
    import torch

    class Whole(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.arange(ITEMS).float()[:, None].repeat(1, 4))
            self.weights = torch.nn.Parameter(torch.full((4,), 0.5))

        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"predictions": self.table[inputs["id"]] @ self.weights + inputs["x"]}

    class Pre(Whole):
        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"rows": self.table[inputs["id"]]}

    class Dense(Whole):
        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            if post:
                return {"scores": inputs["rows"] @ self.weights}
            return {"predictions": inputs["rows"] @ self.weights + inputs["x"]}

    class Post(torch.nn.Module):  # type: ignore[misc]  # as above
        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"predictions": inputs["scores"] + inputs["x"]}

    x, id_, rows = torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4)

    def save(module: Any, example: dict[str, torch.Tensor], target: Path) -> None:
        shapes = {name: {0: torch.export.Dim("batch", min=1)} for name in example}
        target.mkdir(parents=True)
        torch.export.save(
            torch.export.export(module, (example,), dynamic_shapes=(shapes,)), str(target / "model.pt2")
        )

    save(Whole(), {"x": x, "id": id_}, folder)
    save(Pre(), {"id": id_}, folder / "split" / "pre")
    save(Dense(), {"rows": rows} if post else {"rows": rows, "x": x}, folder / "split" / "dense")
    if post:
        save(Post(), {"scores": x.clone(), "x": x}, folder / "split" / "post")
    describe(folder, "torch", post=post, serving=serving)
    return folder


def bare_model(folder: Path) -> None:
    """The same, as a program of `torch.export` alone: two tensors by position, no `model.json`."""
    import torch

    class Whole(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding.from_pretrained(torch.arange(ITEMS).float()[:, None].repeat(1, 4))
            self.weights = torch.nn.Parameter(torch.full((4,), 0.5))

        def forward(self, id: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.table(id) @ self.weights + x

    batch = {0: torch.export.Dim("batch", min=1)}
    example = (torch.zeros(3, dtype=torch.int64), torch.zeros(3))
    folder.mkdir(parents=True)
    torch.export.save(
        torch.export.export(Whole(), example, dynamic_shapes={"id": batch, "x": batch}), str(folder / "model.pt2")
    )


def pooled_model(folder: Path) -> Any:
    """An exported model of torch that pools a bag, as a whole; the module."""
    import torch

    class Pooled(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.table = torch.nn.Embedding(8, 4)
            self.first, self.last = torch.nn.Linear(5, 8), torch.nn.Linear(8, 1)

        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            bag, lengths = inputs["bag"], inputs["bag.lengths"]
            there = torch.arange(bag.shape[1])[None, :] < lengths[:, None]
            pooled = (self.table(bag) * there[:, :, None]).sum(1)
            hidden = torch.relu(self.first(torch.cat([pooled, inputs["x"][:, None]], 1)))
            return {"predictions": self.last(hidden).squeeze(1)}

    batch, free = torch.export.Dim("batch", min=1), torch.export.Dim.DYNAMIC
    example = {
        "bag": torch.ones(3, 4, dtype=torch.int64), "bag.lengths": torch.ones(3, dtype=torch.int64),
        "x": torch.zeros(3),
    }  # fmt: skip
    shapes = {name: {0: batch, 1: free} if each.ndim == 2 else {0: batch} for name, each in example.items()}
    module = Pooled().eval()
    folder.mkdir(parents=True)
    with torch.no_grad():
        program = torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)
    torch.export.save(program, str(folder / "model.pt2"))
    bag = {"name": "bag", "kind": "bag", "dtype": "int64", "shape": [-1, -1]}
    card = {"framework": "torch", "inputs": [bag, X], "outputs": [PREDICTIONS]}
    (folder / "model.json").write_text(json.dumps(card))
    return module


def tensorflow_model(folder: Path) -> Path:
    """The same as SavedModels, without a post half."""
    import tensorflow as tf

    table = tf.repeat(tf.range(ITEMS, dtype=tf.float32)[:, None], 4, axis=1)
    weights = tf.fill([4], 0.5)
    x, id_ = tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "id")
    rows = tf.TensorSpec([None, 4], tf.float32, "rows")

    def save(call: Any, signature: list[Any], target: Path) -> None:
        module = tf.Module()
        module.call = tf.function(call, input_signature=signature)
        tf.saved_model.save(
            module, str(target / "saved_model"), signatures={"serving_default": module.call}
        )

    save(
        lambda x, id: {"predictions": tf.linalg.matvec(tf.gather(table, id), weights) + x}, [x, id_], folder
    )
    save(lambda id: {"rows": tf.gather(table, id)}, [id_], folder / "split" / "pre")
    save(
        lambda rows, x: {"predictions": tf.linalg.matvec(rows, weights) + x}, [rows, x],
        folder / "split" / "dense",
    )  # fmt: skip
    describe(folder, "tensorflow", post=False, serving=None)
    return folder


def describe(folder: Path, framework: str, *, post: bool, serving: dict[str, Any] | None) -> None:
    """Writes `model.json` of all programs, and `split.json`."""
    split = folder / "split"
    dense_in, dense_out = ([ROWS], [SCORES]) if post else ([ROWS, X], [PREDICTIONS])
    cards: list[tuple[Path, list[Entry], list[Entry]]] = [
        (folder, [X, ID], [PREDICTIONS]), (split / "pre", [ID], [ROWS]), (split / "dense", dense_in, dense_out),
    ]  # fmt: skip
    if post:
        cards.append((split / "post", [SCORES, X], [PREDICTIONS]))
    for target, inputs, outputs in cards:
        more = {"serving": serving} if serving and target == folder else {}
        card = {"framework": framework, "inputs": inputs, "outputs": outputs, **more}
        (target / "model.json").write_text(json.dumps(card))

    def stage(name: str, where: Any, inputs: list[Entry], outputs: list[Entry]) -> Stage:
        names = tuple(item["name"] for item in inputs), tuple(item["name"] for item in outputs)
        return Stage(name, where, name, *names, sha256=manifest.digest(split / name, framework))

    stages = [stage("pre", "cn", [ID], [ROWS]), stage("dense", "hn", dense_in, dense_out)]
    if post:
        stages.append(stage("post", "cn", [SCORES, X], [PREDICTIONS]))
    tensors = [X, ID, ROWS, PREDICTIONS, *([SCORES] if post else [])]
    manifest.save(
        Manifest(
            framework=framework, kind="split", why="by hand", model_sha256=manifest.digest(folder, framework),
            inputs=("x", "id"), outputs=("predictions",),
            tensors=tuple(TensorInfo(item["name"], item["dtype"], tuple(item["shape"]), True, 64) for item in tensors),
            stages=tuple(stages),
            transfers=(Transfer("pre", "dense", tuple(item["name"] for item in dense_in), (), 64),),
            batching=Batching(possible=True),
        ),
        split,
    )  # fmt: skip
