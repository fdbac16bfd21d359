"""Ids out of a table's range are the caller's fault, in the frameworks' own words; other failures are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.card import ModelCard
from recmesh.serving.programs import ids

torch = pytest.importorskip("torch")


class Embedded(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not analysed
    """Three ways to look up."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.tags = torch.nn.Embedding(10, 2), torch.nn.EmbeddingBag(10, 2, mode="sum")
        self.rows = torch.nn.Parameter(torch.ones(10, 2))

    def forward(self, user: Any, tags: Any, item: Any) -> Any:
        return (self.user(user) + self.tags(tags) + self.rows[item]).sum(1)


@pytest.mark.filterwarnings("ignore")  # torch's, of its own future
def test_torch(tmp_path: Path) -> None:
    from recmesh.serving.inspect import torch_card
    from recmesh.serving.programs.torch_program import FRAMEWORK

    example = tuple(torch.ones(shape, dtype=torch.int64) for shape in ((2,), (2, 3), (2,)))
    torch.export.save(torch.export.export(Embedded(), example), str(tmp_path / "model.pt2"))
    program = FRAMEWORK.load(tmp_path, ModelCard.parse(torch_card(tmp_path / "model.pt2")))
    good = {"user": np.array([1, 2]), "tags": np.ones((2, 3), np.int64), "item": np.array([3, 4])}
    assert program.run(good)["output"].shape == (2,)
    for name, wrong, is_named in (
        ("user", np.array([1, 10]), False),      # torch does not say which id it was
        ("tags", np.array([[1, 1, 77], [1, 1, 1]]), True),
        ("item", np.array([1, 55]), True),
    ):
        with pytest.raises(InvalidArgument, match="out of its table's range") as failed:
            program.run(good | {name: wrong})
        assert failed.value.reason == "ID_OUT_OF_RANGE"
        assert [each.path for each in failed.value.violations] == ([f"inputs.{name}"] if is_named else [])
    with pytest.raises(Exception, match="") as other:
        program.run(good | {"item": np.array([1, 2, 3])})
    assert not isinstance(other.value, InvalidArgument)


def test_the_only_input_of_integers_is_named() -> None:
    inputs = {"id": np.array([1]), "x": np.array([0.5])}
    error = ids.refused("index out of range in self", inputs)
    assert error is not None and [each.path for each in error.violations] == ["inputs.id"]
    assert ids.refused("list index out of range", inputs) is None


def test_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from recmesh.serving.inspect import tensorflow_card
    from recmesh.serving.programs.tensorflow_program import FRAMEWORK

    class Rows(tf.Module):  # type: ignore[misc, name-defined]  # TensorFlow is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(tf.ones([10, 2]))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name) for name in ("user", "item")])  # type: ignore[untyped-decorator]  # as above
        def serve(self, user: Any, item: Any) -> Any:
            return {"score": tf.reduce_sum(tf.gather(self.table, user) + tf.gather(self.table, item), 1)}

    model = Rows()
    tf.saved_model.save(model, str(tmp_path / "saved_model"), signatures={"serving_default": model.serve})
    program = FRAMEWORK.load(tmp_path, ModelCard.parse(tensorflow_card(tmp_path / "saved_model")))
    with pytest.raises(InvalidArgument) as failed:
        program.run({"user": np.array([1]), "item": np.array([10])})
    assert [str(each) for each in failed.value.violations] == ["inputs.item: indices[0] = 10 is not in [0, 10)"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        program.run({"user": np.array([1, 2]), "item": np.array([1, 2, 3])})
