"""The CustomResourceDefinitions, written from the specifications.

    python -m recmesh.crd.definitions infra/base/crds
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from recmesh.crd import kinds
from recmesh.crd.rules import Cel
from recmesh.crd.schema import Schema, structural, with_rules
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import TrainingJob

HEAD = """# Written by `python -m recmesh.crd.definitions infra/base/crds` from the specifications in recmesh/spec;
# a test holds the two together.
"""
_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_HAS_JOB = "has(oldSelf.status) && has(oldSelf.status.job_id)"
FIXED = (
    "name", "owner", "labels", "model", "data", "dataset", "mode", "scaling", "training", "evaluation", "checkpoint",
    "freshness", "init_from", "export", "priority", "deadline", "backoff_limit", "active_deadline_s", "managed_by",
    "pod_failure_policy", "clean_pod_policy", "pod_group_policy",
)
"""Of a TrainingJob: what a job that was made of it can change no more."""
FIXED_MESSAGE = "cannot be changed once the job is accepted; delete the job, and submit another"


@dataclass(frozen=True, slots=True)
class Column:
    """What `kubectl get` prints."""

    name: str
    path: str
    kind: str = "string"
    wide: bool = False
    about: str = ""

    def as_document(self) -> dict[str, Any]:
        """An item of additionalPrinterColumns."""
        made: dict[str, Any] = {"name": self.name, "type": self.kind, "jsonPath": self.path}
        if self.about:
            made["description"] = self.about
        return made | ({"priority": 1} if self.wide else {})


AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    name: str
    plural: str
    short: tuple[str, ...]
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    scales: bool = False
    left_out: tuple[str, ...] = ()
    """Fields of the specification that an object says elsewhere."""
    optional: tuple[str, ...] = ()
    """Such as the object's own name stands for."""
    rules: tuple[Cel, ...] = ()
    """Of the whole object."""


def _fixed(field: str) -> Cel:
    now, before = f"self.spec.{field}", f"oldSelf.spec.{field}"
    return Cel(
        f"!({_HAS_JOB}) || (has({now}) == has({before}) && (!has({now}) || {now} == {before}))", FIXED_MESSAGE,
        field=f"spec.{field}",
    )


_JOB_NAME = "(has(self.spec.name) ? self.spec.name : self.metadata.name)"
_IS_NAME = Cel(f"self.metadata.name.matches('{_NAME}')", f"String should match pattern '{_NAME}'")
_EXPORT = "has(self.spec.export) && self.spec.export != null"
_TOO_LONG = "makes a name of more than 63 characters together with the model's"

KINDS = (
    Kind(
        "TrainingJob", "trainingjobs", ("tj",), TrainingJob, kinds.TrainingJobStatus, scales=True,
        left_out=("api_version", "namespace"), optional=("name",),
        columns=(
            Column("Phase", ".status.phase"),
            Column("Workers", ".status.ready_workers", about="At work / wanted."),
            Column("PS", ".status.ready_ps", about="Parameter servers at work / wanted."),
            Column("Progress", ".status.progress"), Column("ETA", ".status.eta"),
            Column("Priority", ".spec.priority", "integer", wide=True),
            Column("Throughput", ".status.throughput", wide=True, about="Samples per second."),
            Column("Lag", ".status.lag", wide=True, about="Of topics: the age of the oldest message not trained."),
            AGE,
        ),
        rules=(
            _IS_NAME,
            Cel(f"!({_EXPORT}) || !has(self.spec.export.__namespace__) || self.spec.export.__namespace__.size() + 2 + "
                f"(has(self.spec.export.model_name) ? self.spec.export.model_name : {_JOB_NAME}).size() <= 63",
                _TOO_LONG, field="spec.export.namespace"),
            *map(_fixed, FIXED),
        ),
    ),
    Kind(
        "TrainingDataset", "trainingdatasets", ("tds",), DatasetSpec, kinds.TrainingDatasetStatus,
        left_out=("name",),
        columns=(
            Column("Phase", ".status.phase"), Column("Revision", ".status.revision", "integer"),
            Column("Rows", ".status.rows", "integer"), Column("Files", ".status.files", "integer"),
            Column("Size", ".status.size"),
            Column("Used by", ".status.used_by", "integer", about="Jobs that have not ended."),
            Column("Tasks", ".status.tasks", "integer", wide=True),
            Column("Dataset", ".status.dataset", wide=True, about="As jobs name it."), AGE,
        ),
        rules=(_IS_NAME,),
    ),
    Kind(
        "JobMetrics", "jobmetrics", ("jm",), kinds.JobMetricsSpec, kinds.JobMetricsStatus,
        columns=(
            Column("Phase", ".status.phase"), Column("Samples", ".status.samples", "integer"),
            Column("Samples/s", ".status.samples_per_s", "number"), Column("Loss", ".status.loss", "number"),
            Column("AUC", ".status.auc", "number"), Column("CPU", ".status.cpu", "number"),
            Column("Memory", ".status.memory"), Column("Lag s", ".status.lag_s", "number", wide=True),
            Column("Job", ".spec.job", wide=True), Column("Observed", ".status.observed", "date"),
        ),
    ),
    Kind(
        "ModelService", "modelservices", ("msvc",), kinds.ModelService, kinds.ModelServiceStatus,
        columns=(
            Column("Model", ".status.model"), Column("Version", ".status.version"), Column("Phase", ".status.phase"),
            Column("Ready", ".status.ready", about="Gateways that serve it / that follow it."),
            Column("Framework", ".status.framework", wide=True), Column("URI", ".spec.uri", wide=True), AGE,
        ),
        rules=(
            _IS_NAME,
            Cel("has(self.spec.model) == has(oldSelf.spec.model) && "
                "(!has(self.spec.model) || self.spec.model == oldSelf.spec.model)",
                "cannot be changed; delete the ModelService, and create another", field="spec.model"),
        ),
    ),
)


def definition(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition."""
    subresources: dict[str, Any] = {"status": {}}
    if kind.scales:
        subresources["scale"] = {
            "specReplicasPath": ".spec.roles.worker.replicas", "statusReplicasPath": ".status.workers",
            "labelSelectorPath": ".status.selector",
        }
    version = {
        "name": kinds.VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": _whole(kind)},
        "subresources": subresources, "additionalPrinterColumns": [column.as_document() for column in kind.columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kinds.GROUP}", "labels": {"app.kubernetes.io/part-of": "recmesh"}},
        "spec": {
            "group": kinds.GROUP, "scope": "Namespaced",
            "names": {
                "kind": kind.name, "listKind": f"{kind.name}List", "plural": kind.plural,
                "singular": kind.name.lower(), "shortNames": list(kind.short), "categories": ["all", "recmesh"],
            },
            "versions": [version],
        },
    }


def _whole(kind: Kind) -> Schema:
    spec = structural(kind.spec)
    required = [name for name in spec.get("required", []) if name not in (*kind.left_out, *kind.optional)]
    spec["properties"] = {name: value for name, value in spec["properties"].items() if name not in kind.left_out}
    for name in kind.optional:
        spec["properties"][name] |= {"description": "By default the object's name."}
    spec.pop("required", None)
    if required:
        spec["required"] = required
    status = structural(kind.status)
    properties: Schema = {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}, "spec": spec,
        "status": status,
    }
    about = spec.get("description", "")
    return with_rules(
        {"type": "object", "description": about, "required": ["spec"], "properties": properties}, list(kind.rules)
    )


def text(kind: Kind) -> str:
    """The file."""
    return HEAD + yaml.dump(definition(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def files() -> dict[str, str]:
    """All files: their texts by name."""
    return {f"{kind.plural}.yaml": text(kind) for kind in KINDS}


class _Dumper(yaml.SafeDumper):
    """Without anchors: an equal part is written again, so that each file can be read from top to bottom."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never an alias."""
        return True


def main(arguments: Sequence[str]) -> None:
    """Writes the files into the folder."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (folder / name).write_text(content)


if __name__ == "__main__":
    main(sys.argv[1:])
