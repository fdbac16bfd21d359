"""Classes of operators: the built-in table, a user's file, an installed package's."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from recmesh.plugins import registry
from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.split.classes import GROUP, Class, built_in, read
from recmesh.serving.split.graph import Operator


def operator(kind: str, *, name: str = "an_operator", table: int = 0) -> Operator:
    return Operator(name, kind, (), (), table)


@pytest.mark.parametrize(
    ("framework", "kind", "table", "expected"),
    [
        ("torch", "aten.embedding.default", 1, Class.CPU),
        ("torch", "aten.index.Tensor", 1, Class.CPU),
        ("torch", "aten.index.Tensor", 0, Class.NEUTRAL),
        ("torch", "aten.linear.default", 0, Class.SEED),
        ("torch", "aten.scaled_dot_product_attention.default", 0, Class.SEED),
        ("torch", "aten.add.Tensor", 0, Class.NEUTRAL),
        ("torch", "cond", 0, Class.WHOLE),
        ("tensorflow", "GatherV2", 1, Class.CPU),
        ("tensorflow", "GatherV2", 0, Class.NEUTRAL),
        ("tensorflow", "StringToHashBucketFast", 0, Class.CPU),
        ("tensorflow", "LookupTableFindV2", 0, Class.CPU),
        ("tensorflow", "BatchMatMulV2", 0, Class.SEED),
        ("tensorflow", "StatefulPartitionedCall", 0, Class.WHOLE),
        ("tensorflow", "aten.linear.default", 0, Class.NEUTRAL),
    ],
)
def test_the_built_in_table_knows(framework: str, kind: str, table: int, expected: Class) -> None:
    assert built_in().of(operator(kind, table=table), framework) is expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.toml", '[names]\n"tower_*" = "cpu"\n[torch]\n"aten.mul.*" = "seed"\n'),
        ("own.yaml", 'names: {"tower_*": cpu}\ntorch: {"aten.mul.*": seed}\n'),
    ],
)
def test_a_users_file_goes_first_and_names_go_before_kinds(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    found = read(file).over(built_in())
    assert found.of(operator("aten.mul.Tensor"), "torch") is Class.SEED
    assert found.of(operator("aten.mul.Tensor", name="tower_1"), "torch") is Class.CPU
    assert found.of(operator("aten.linear.default"), "torch") is Class.SEED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[torch]\n"aten.*" = "gpu"', "torch.aten.*: 'gpu' is none of cpu, lookup, seed"),
        ('[onnx]\n"Gemm" = "seed"', "onnx: is none of names, torch, tensorflow"),
        ("torch = 3", "torch: is no table of patterns"),
        ("[torch", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_its_entry(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        read(file)
    assert why in str(refused.value)
    assert "own.toml" in str(refused.value)


def test_a_file_that_is_not_there_or_is_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read(tmp_path / "none.toml")
    (tmp_path / "own.yaml").write_text("torch: {")
    with pytest.raises(InvalidArgument, match=r"own\.yaml cannot be read"):
        read(tmp_path / "own.yaml")


EXTENSION = {"torch": {"mylib.fused_attention.*": "seed"}}


def test_an_installed_package_can_add_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mylib", f"{__name__}:EXTENSION", GROUP)
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group, name="mylib": [point] if (group, name) == (GROUP, "mylib") else []
    )
    assert built_in().of(operator("mylib.fused_attention.default"), "torch") is Class.SEED
    monkeypatch.undo()
    assert built_in().of(operator("mylib.fused_attention.default"), "torch") is Class.NEUTRAL
