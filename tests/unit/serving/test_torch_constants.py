"""What follows from a program's weights alone is computed at the load, and changes nothing."""

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from recmesh.serving.programs import torch_constants  # noqa: E402  # torch may be missing


class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b = torch.nn.Parameter(torch.randn(4, 5)), torch.nn.Parameter(torch.randn(5, 4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        mixed = (self.a @ self.b).softmax(0)             # of weights alone: two operators
        if self.kind == "random":
            mixed = mixed + torch.rand_like(self.a @ self.b)
        if self.kind == "writes":
            self.count.add_(1)
            mixed = mixed + self.count
        return x @ mixed


def exported(kind: str) -> Any:
    torch.manual_seed(1)
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(Model(kind).eval(), (torch.zeros(3, 4),), dynamic_shapes=({0: batch},)).module()


def operators(module: Any) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_operators_on_weights_run_once_and_the_answer_is_the_same() -> None:
    module, x = exported("plain"), torch.randn(7, 4)
    with torch.inference_mode():
        before = module(x)
        assert torch_constants.fold(module) == 2
        assert [name for name in operators(module) if "matmul" in name or "mm" in name] == [operators(module)[-1]]
        assert torch.equal(module(x), before) and torch.equal(module(x), before)
    assert not any("softmax" in name for name in operators(module))


def test_random_numbers_stay_random() -> None:
    module, x = exported("random"), torch.ones(1, 4)
    torch_constants.fold(module)
    assert any("rand_like" in name for name in operators(module))
    assert not torch.equal(module(x), module(x))


def test_a_program_that_writes_to_its_buffers_is_left_as_it_is() -> None:
    module, x = exported("writes"), torch.ones(1, 4)
    assert torch_constants.fold(module) == 0
    assert not torch.equal(module(x), module(x))


def test_a_large_result_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_constants, "MAX_BYTES", 8)
    module, x = exported("plain"), torch.randn(2, 4)
    before = module(x)
    assert torch_constants.fold(module) == 0
    assert torch.equal(module(x), before)
