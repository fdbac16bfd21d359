"""What the page on mixed training shows works as it stands there."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import recmesh
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import Model, TrainingJob
from recmesh.zoo.needs import violations
from tests.support.hours import modes, write_hours

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "mixed-training.md").read_text()
SHOWN = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
CODE = dict(zip(("torch", "keras"), re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), strict=True))


def test_the_four_ways_are_datasets_of_the_kinds_that_the_page_says() -> None:
    kinds = [DatasetSpec.parse(shown["data"]).kinds for shown in SHOWN if "data" in shown]
    assert kinds == [("stream", "batch"), ("batch", "stream"), ("batch",), ("stream",)]


def test_the_models_parameters_fit_it() -> None:
    model, = (Model.parse(shown["model"]) for shown in SHOWN if "model" in shown)
    assert violations(model, DatasetSpec.parse(SHOWN[0]["data"])) == []


@pytest.mark.parametrize("framework", CODE)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")   # TensorFlow's own
def test_the_towers_shown_train_on_both_kinds(tmp_path: Path, framework: str) -> None:
    pytest.importorskip("torch" if framework == "torch" else "keras")
    write_hours(tmp_path, hours=2)
    data = modes(tmp_path, hours=2)["mixed"]
    job = recmesh.local_job(TrainingJob.parse({
        "name": "shown", "model": {"entrypoint": "here:main"}, "data": data, "training": {"batch_size": 16},
    }))
    space: dict[str, Any] = {}
    exec(CODE[framework], space)       # the project's own page
    space["main"](job)
    session: Any = job.session
    assert job.model is not None
    initial, after = {block.name: block.value for block in job.model.dense}, session.dense()
    still = [name for name, value in initial.items() if np.array_equal(value, after[name])]
    assert [name for name in still if "seed" not in name] == []
