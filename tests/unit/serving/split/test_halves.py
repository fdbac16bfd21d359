"""Models of both frameworks split end to end: the written halves, loaded by the gateway's own runtimes."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recmesh
from recmesh.runtime.errors import DataLoss, InvalidArgument, NotFound
from recmesh.serving.split import manifest, partition
from recmesh.serving.split.classes import Classes, built_in
from recmesh.serving.split.partition import Options
from tests.support.rows import job_over, write_rows

torch = pytest.importorskip("torch")
SMALL = Options(batch=6, length=5)


class Pooled(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not analysed
    """A bag pooled, a product, and what the parameters ask for besides."""

    def __init__(self, *, in_place: bool = False, branch: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(8, 4)
        self.first, self.last = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
        self.register_buffer("shift", torch.tensor([0.5, 1.5, 2.5]))
        self._in_place, self._branch = in_place, branch

    def forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
        x = self.first(self.table(inputs["bag"]).sum(1)) + self.shift * 2
        x = torch.nn.functional.relu(x, inplace=self._in_place)
        if self._branch:
            x = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
        return {"p": self.last(x).squeeze(1)}


def exported(model: Any, folder: Path, *, example: dict[str, Any] | None = None) -> Path:
    example = example or {"bag": torch.ones(3, 4, dtype=torch.int64)}
    batch = torch.export.Dim("batch", min=1)
    free = torch.export.Dim.DYNAMIC
    shapes = {name: {0: batch} if each.ndim == 1 else {0: batch, 1: free} for name, each in example.items()}
    with torch.no_grad():
        program = torch.export.export(model.eval(), (example,), dynamic_shapes=(shapes,), strict=False)
    folder.mkdir()
    torch.export.save(program, str(folder / "model.pt2"))
    return folder


def by_runtimes(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """The stages one after another, each by the runtime that serves any model of its framework."""
    from recmesh.serving.card import ModelCard
    from recmesh.serving.programs import MODULES

    known = manifest.load(folder)
    manifest.check_files(known, folder, model=folder.parent)
    there = dict(inputs)
    for stage in known.stages:
        card = ModelCard.parse(json.loads((folder / stage.program / "model.json").read_bytes()))
        runtime = importlib.import_module(MODULES[known.framework]).FRAMEWORK     # not prepared: training came before
        program = runtime.load(folder / stage.program, card)
        there |= program.run({name: there[name] for name in stage.inputs})
    return {name: there[name] for name in known.outputs}


def trained(tmp_path: Path, main: Any, **params: Any) -> Path:
    features: list[dict[str, Any]] = [
        {"name": "user"}, {"name": "tags", "kind": "bag"}, {"name": "past", "kind": "sequence", "max_length": 4},
        {"name": "x", "kind": "dense"},
    ]  # fmt: skip
    spec = job_over(write_rows(tmp_path / "rows.parquet"), features=features)
    job = recmesh.local_job(spec.model_copy(update={"model": spec.model.model_copy(update={"params": params})}))
    main(job)
    job.export(tmp_path / "model")
    return tmp_path / "model"


def requests(batch: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    return {
        "user": rng.integers(0, 7, batch), "tags": rng.integers(0, 8, (batch, length)),
        "tags.lengths": rng.integers(0, length + 1, batch), "past": rng.integers(0, 7, (batch, 4)),
        "past.lengths": rng.integers(0, 5, batch), "x": rng.standard_normal(batch).astype(np.float32),
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # torch's, of its own future
def test_halves_of_a_zoo_model_of_torch_are_the_model_to_the_bit(tmp_path: Path) -> None:
    from recmesh.zoo.torch import dlrm

    folder = trained(tmp_path, dlrm.main, embedding_dim=4, bottom=[8], top=[8])
    found = partition.partition(folder, None, SMALL)
    assert found.manifest.is_split, found.manifest.why
    assert found.manifest.batching.possible
    assert found.decision is not None
    assert found.decision.reduction > 0.5, "pooling is to be on the CN"
    whole = torch.export.load(str(folder / "model.pt2")).module()
    for batch, length in ((2, 2), (6, 5), (11, 3)):
        inputs = requests(batch, length)
        wanted = whole({name: torch.from_numpy(each) for name, each in inputs.items()})["predictions"].numpy()
        assert by_runtimes(folder / "split", inputs)["predictions"].tobytes() == wanted.tobytes()


@pytest.mark.filterwarnings("ignore")  # TensorFlow's, of its own future
def test_halves_of_a_zoo_model_of_tensorflow_are_the_model_to_the_bit(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from recmesh.zoo.keras import wide_deep

    folder = trained(tmp_path, wide_deep.main, embedding_dim=4, hidden=[8])
    found = partition.partition(folder, None, SMALL)
    assert found.manifest.is_split, found.manifest.why
    assert found.manifest.batching.possible
    serve = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
    for batch, length in ((1, 1), (6, 5), (11, 3)):
        inputs = requests(batch, length)
        wanted = serve(**{name.replace(".", "_"): tf.constant(each) for name, each in inputs.items()})["predictions"]
        assert by_runtimes(folder / "split", inputs)["predictions"].tobytes() == wanted.numpy().tobytes()


@pytest.mark.filterwarnings("ignore")  # as above
def test_strings_vocabularies_and_labels_of_a_saved_model_stay_on_the_cn(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from keras import layers

    class Foreign(tf.Module):  # type: ignore[misc, name-defined]  # tensorflow has no types
        def __init__(self) -> None:
            super().__init__()
            self.known, self.hashed = layers.StringLookup(vocabulary=["a", "b"]), layers.Hashing(10)
            rng = np.random.default_rng(1)
            self.table = tf.Variable(rng.standard_normal((10, 4)), dtype=tf.float32)
            self.weights = tf.Variable(rng.standard_normal((8, 3)), dtype=tf.float32)
            self.labels = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1, 2], tf.int64), ["no", "maybe", "yes"]), "?"
            )

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.string, "words")])  # type: ignore[untyped-decorator]  # as above
        def serve(self, words: Any) -> Any:
            rows = tf.gather(self.table, self.known(words)) * tf.gather(self.table, self.hashed(words))
            pooled = tf.concat([tf.reduce_sum(rows, 1), tf.zeros([tf.shape(words)[0], 4])], 1)
            scores = tf.matmul(pooled, self.weights * 2.0)
            scores = tf.reshape(scores, tf.stack([tf.shape(words)[0], 3]))
            return {"label": self.labels.lookup(tf.argmax(scores, 1)), "scores": scores}

    model = Foreign()
    folder = tmp_path / "model"
    tf.saved_model.save(model, str(folder / "saved_model"), signatures=model.serve)
    found = partition.partition(folder / "saved_model", None, SMALL).manifest
    assert [each.name for each in found.stages] == ["pre", "dense", "post"], found.why
    assert found.stage("pre").inputs == ("words",)
    assert "label" in found.stage("post").outputs
    words = np.array([[b"a", b"b"], [b"zzz", b"a"], [b"", b"q"]], object)
    made = by_runtimes(folder / "split", {"words": words})
    wanted = model.serve(tf.constant(words))
    assert made["scores"].tobytes() == wanted["scores"].numpy().tobytes()
    assert made["label"].tolist() == wanted["label"].numpy().tolist()


@pytest.mark.filterwarnings("ignore")  # as above
def test_operators_in_place_are_split_and_constants_are_computed_once(tmp_path: Path) -> None:
    folder = exported(Pooled(in_place=True), tmp_path / "model")
    found = partition.partition(folder, None, SMALL)
    assert found.manifest.is_split, found.manifest.why
    assert found.manifest.report["constants"] == 1
    dense = torch.export.load(str(folder / "split" / "dense" / "model.pt2"))
    multiplied = [node for node in dense.graph.nodes if "mul" in str(node.target)]
    assert not multiplied, "shift * 2 is a constant"
    assert not any("weight" in name and held.shape == (8, 4) for name, held in dense.state_dict.items())


@pytest.mark.filterwarnings("ignore")  # as above
def test_a_users_classes_move_an_operator(tmp_path: Path) -> None:
    folder = exported(Pooled(), tmp_path / "model")
    plain = partition.partition(folder, None, SMALL).decision
    own = Classes.parse({"torch": {"aten.relu.*": "cpu"}}, "test").over(built_in())
    moved = partition.partition(folder, None, Options(batch=6, length=5, classes=own)).manifest
    assert plain is not None and "relu" in plain.regions.hn
    assert not moved.is_split
    assert "relu must be on a CPU and lies between products" in moved.why
    assert sorted(each.name for each in (folder / "split").iterdir()) == ["split.json"], "nothing of before is left"


@pytest.mark.filterwarnings("ignore")  # as above
def test_control_flow_is_served_whole(tmp_path: Path) -> None:
    folder = exported(Pooled(branch=True), tmp_path / "model")
    found = partition.partition(folder, None, SMALL).manifest
    assert (found.kind, found.stages) == ("whole", ())
    assert "control flow" in found.why
    assert manifest.load(folder / "split") == found


@pytest.mark.filterwarnings("ignore")  # as above
def test_halves_that_differ_in_one_bit_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recmesh.serving.split.torch_program import TorchModel

    folder = exported(Pooled(), tmp_path / "model")
    right = TorchModel.run

    def off(self: TorchModel, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: np.nextafter(each, np.float32(9)) for name, each in right(self, inputs).items()}

    monkeypatch.setattr(TorchModel, "run", off)
    found = partition.partition(folder, None, SMALL).manifest
    assert not found.is_split
    assert "do not give its results: 'p' differs by up to" in found.why
    assert not (folder / "split" / "dense").exists()


@pytest.mark.filterwarnings("ignore")  # as above
def test_recorded_inputs_are_checked_on_and_wrong_ones_named(tmp_path: Path) -> None:
    folder = exported(Pooled(), tmp_path / "model")
    file = tmp_path / "recorded.npz"
    np.savez(file, bag=np.array([[7, 6, 5]]))
    found = partition.partition(folder, None, Options(batch=6, recorded=file))
    assert found.manifest.is_split
    assert found.manifest.tensor("bag").bytes == 6 * 3 * 8
    for wrong, why in (({"bags": [[1]]}, "has no 'bag'"), ({"bag": [1.5]}, "is float64"), ({"bag": [1]}, "has 1 dim")):
        np.savez(file, allow_pickle=False, **{name: np.array(each) for name, each in wrong.items()})
        with pytest.raises(InvalidArgument, match=why):
            partition.partition(folder, None, Options(batch=6, recorded=file))


def test_what_is_no_model_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        partition.partition(tmp_path / "nothing")
    with pytest.raises(InvalidArgument, match=r"holds neither saved_model nor model\.pt2"):
        partition.partition(tmp_path)
    (tmp_path / "model.pt2").write_text("no archive")
    with pytest.raises(InvalidArgument, match=r"is no archive of torch\.export"):
        partition.partition(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt2"]
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "mine.txt").write_text("precious")
    with pytest.raises(InvalidArgument, match="is no split model; it is left"):
        partition.partition(tmp_path)
    with pytest.raises(InvalidArgument, match="at least 2"):
        Options(batch=1)


@pytest.mark.filterwarnings("ignore")  # as above
def test_the_command_prints_the_cut_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from recmesh.cli.main import app

    folder = exported(Pooled(), tmp_path / "model")
    app(["partition", str(folder), "--batch", "6", "--length", "5", "--explain"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Split       yes" in shown
    assert "Naive       " in shown
    assert "CN → HN" in shown
    assert "aten.embedding.default" in shown
    picture = (folder / "split" / "cut.svg").read_text()
    assert "96 B" in picture and "CN (CPU): 2 operators" in picture
    app(["partition", str(folder), "--json", "--out", str(tmp_path / "elsewhere")], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["kind"] == "split"
    assert (tmp_path / "elsewhere" / "dense" / "model.pt2").is_file()


class Plain(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not analysed
    """Takes tensors by position, and gives one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = torch.nn.Embedding(8, 4), torch.nn.Linear(5, 1)

    def forward(self, user: Any, age: Any) -> Any:
        return self.last(torch.cat([self.table(user), age[:, None]], 1)).squeeze(1)


@pytest.mark.filterwarnings("ignore")  # torch's, of its own future
def test_a_bare_program_s_tensors_have_the_names_that_the_gateway_gives_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from recmesh.cli import partition_verbs
    from recmesh.serving.card import ModelCard
    from recmesh.serving.halves import check_origin
    from recmesh.serving.inspect import torch_card

    folder, batch = tmp_path / "model", {0: torch.export.Dim("batch", min=1)}
    folder.mkdir()
    example = (torch.ones(3, dtype=torch.int64), torch.ones(3))
    torch.export.save(
        torch.export.export(Plain().eval(), example, dynamic_shapes={"user": batch, "age": batch}),
        str(folder / "model.pt2"),
    )
    np.savez(tmp_path / "in.npz", user=np.arange(4), age=np.ones(4, np.float32))
    outcome = partition.partition(folder, None, Options(batch=6, recorded=tmp_path / "in.npz"))
    found = outcome.manifest
    assert found.is_split, found.why
    assert (found.inputs, found.outputs) == (("user", "age"), ("output",))
    partition_verbs._print(folder, folder / "split", outcome)
    assert outcome.decision is not None
    naive = outcome.decision.naive
    assert f" {naive.sent_bytes:,} to the HN, {naive.returned_bytes:,} back by colouring" in capsys.readouterr().out
    card = torch_card(folder / "model.pt2")
    check_origin(folder, ModelCard.parse(card), found)
    card["inputs"][0]["name"] = "customer"
    with pytest.raises(DataLoss, match="has the inputs user, age, and the model customer, age; split the model again"):
        check_origin(folder, ModelCard.parse(card), found)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "model.pt2").symlink_to(folder / "model.pt2")
    (tmp_path / "link" / "split").symlink_to(folder / "split")
    assert partition.partition(tmp_path / "link", None, Options(batch=8)).manifest.is_split
    assert manifest.load(folder / "split").report["batch"] == 8, "halves are written where the link leads"
