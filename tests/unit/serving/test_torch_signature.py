"""Exported programs, called without the trees of their signatures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
from recmesh.runtime.errors import InvalidArgument  # noqa: E402  # torch may be missing
from recmesh.serving.card import ModelCard  # noqa: E402  # as above
from recmesh.serving.programs.torch_program import FRAMEWORK  # noqa: E402  # as above


class OfDict(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
    def forward(self, named: dict[str, Any]) -> Any:
        total = named["a"] + named["b"]
        return {"total": total, "apart": named["a"] - named["b"], "more": total}


class OfNames(torch.nn.Module):  # type: ignore[misc]  # as above
    def forward(self, a: Any, b: Any) -> Any:
        return a + b, a - b


def saved(folder: Path, form: str, *, example: bool = True) -> ModelCard:
    a, b = torch.zeros(3, 2), torch.zeros(3, 2)
    batch = {0: torch.export.Dim("batch", min=1)}
    both: Any = {"a": batch, "b": batch}
    model: Any = OfDict() if form == "dict" else OfNames()
    args = {"dict": ({"b": b, "a": a},), "keywords": (), "positions": (a, b)}[form]
    kwargs = {"a": a, "b": b} if form == "keywords" else {}
    shapes = (both,) if form == "dict" else both
    program = torch.export.export(model.eval(), args, kwargs, dynamic_shapes=shapes)
    if not example:
        program._example_inputs = None
    torch.export.save(program, str(folder / "model.pt2"))
    return card("a", "b")


def card(*inputs: str, outputs: tuple[str, ...] = ("total", "apart")) -> ModelCard:
    return ModelCard.parse({
        "framework": "torch",
        "inputs": [{"name": name, "dtype": "float32", "shape": [-1, 2]} for name in inputs],
        "outputs": [{"name": name, "dtype": "float32", "shape": [-1, 2]} for name in outputs],
    })  # fmt: skip


@pytest.mark.parametrize("example", [True, False])
@pytest.mark.parametrize("form", ["dict", "keywords", "positions"])
def test_inputs_reach_their_places_whatever_the_form(form: str, example: bool, tmp_path: Path) -> None:
    program = FRAMEWORK.load(tmp_path, saved(tmp_path, form, example=example))
    a, b = np.full((5, 2), 3, np.float32), np.ones((5, 2), np.float32)
    found = program.run({"b": b, "a": a})
    assert set(found) == {"total", "apart"}
    assert np.all(found["total"] == 4) and np.all(found["apart"] == 2)


def test_a_shape_that_the_program_does_not_take_is_refused(tmp_path: Path) -> None:
    program = FRAMEWORK.load(tmp_path, saved(tmp_path, "dict"))
    with pytest.raises((AssertionError, RuntimeError), match=r"(?i)expected|guard"):
        program.run({"a": np.zeros((5, 3), np.float32), "b": np.zeros((5, 3), np.float32)})


@pytest.mark.parametrize(
    ("form", "listed", "why"),
    [
        ("dict", card("a", "c"), "takes a, b; model.json lists a, c"),
        ("keywords", card("a"), "takes a, b; model.json lists a"),
        ("positions", card("a"), "takes 2 inputs; model.json lists 1"),
        ("positions", card("a", "b", outputs=("total",)), "gives 2 outputs, but model.json lists 1"),
    ],
)
def test_a_card_of_another_program_is_refused(form: str, listed: ModelCard, why: str, tmp_path: Path) -> None:
    saved(tmp_path, form)
    with pytest.raises(InvalidArgument, match=why):
        FRAMEWORK.load(tmp_path, listed)
