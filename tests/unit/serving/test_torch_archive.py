"""What a torch program may hold."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from recmesh.runtime.errors import InvalidArgument  # noqa: E402  # torch may be missing
from recmesh.serving.programs.torch_archive import check  # noqa: E402  # as above

PLAIN = {"w": {"path_name": "weight_0", "use_pickle": False}}
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"


def archive(path: Path, documents: dict[str, Any]) -> Path:
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, document in documents.items():
        data = json.dumps(document).encode()
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return path


def program(target: str, size: str) -> dict[str, Any]:
    return {"nodes": [{"target": target}], "values": {"x": {"as_expr": {"expr_str": size}}}}


def test_tensors_and_operators_are_taken(tmp_path: Path) -> None:
    good = program("torch.ops.aten.add.Tensor", "Mul(Integer(2), Symbol('s7', positive=True, integer=True))")
    documents = {WEIGHTS: {"config": PLAIN}, CONSTANTS: {"config": {}}, "models/model.json": good}
    check(archive(tmp_path / "model.pt2", documents))


@pytest.mark.parametrize(
    ("name", "document", "reason"),
    [
        (WEIGHTS, {"config": {"w": {"path_name": "weight_0", "use_pickle": True}}}, "pickled"),
        (CONSTANTS, {"config": {"c": {"path_name": "tensor_0", "use_pickle": True}}}, "pickled"),
        (CONSTANTS, {"config": {"c": {"path_name": "custom_obj_0", "use_pickle": False}}}, "pickled"),
        (CONSTANTS, {"config": {"c": {"path_name": "opaque_obj_0", "use_pickle": False}}}, "pickled"),
        ("data/aotinductor/model/model.so", {}, "compiled"),
        ("models/model.json", program("torch.os.system", "Integer(1)"), "no operator"),
        ("models/model.json", program("_operator.__loader__", "Integer(1)"), "no operator"),
        ("models/model.json", program("torch.ops.aten.add.Tensor", "__import__('os')"), "no formula"),
        ("models/model.json", program("torch.ops.aten.add.Tensor", "Symbol('s').name"), "no formula"),
    ],
)
def test_what_would_run_code_is_refused(tmp_path: Path, name: str, document: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as caught:
        check(archive(tmp_path / "model.pt2", {name: document}))
    assert caught.value.reason == "BAD_MODEL_FOLDER"


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(InvalidArgument, match="no archive"):
        check(path)
