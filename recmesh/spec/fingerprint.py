"""What two readers must agree on to get the same rows from the same slice of a file.

By it materialised caches name their files, and workers, executors and jobmaster tell whether two jobs read alike.
"""

import hashlib
import json

from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import TrainingJob

VERSION = 2
"""To be raised when the same slice would give other rows."""
_WHICH_FILES = ("files", "rows", "version", "partition", "start", "end", "done", "lateness", "offset", "weight",
                "may_be_empty", "priority")
"""Of a source: they choose slices, or their order, and a slice says itself which rows it is."""
_DATASET = ("label", "label_above", "labels", "weight", "features", "where", "bad_records")


def reading_fingerprint(spec: DatasetSpec, *, code: str = "") -> str | None:
    """Hex digest of all that decides what a slice's rows are, and in which view; `code`: the job's `model.code`.

    None where that is not known: a feature calls a function of code that is no packed archive.
    """
    fields = json.loads(spec.model_dump_json(include=set(_DATASET)))
    if any(feature.function for feature in spec.features):
        if not code.startswith("sha256:"):
            return None
        fields["code"] = code
    if spec.bad_records is not None:
        fields["bad_records"] = {"folder": spec.bad_records.folder}     # how many may be bad is not of the rows
    fields["sources"] = [
        json.loads(view.source.model_dump_json(exclude=set(_WHICH_FILES))) for view in spec.views()
    ]
    text = json.dumps([VERSION, fields], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def job_fingerprint(spec: TrainingJob, *, job_id: str) -> str:
    """Of a job with a resolved dataset; one whose features call loose code reads as no other does."""
    assert spec.data is not None
    return reading_fingerprint(spec.data, code=spec.model.code) or f"job:{job_id}"
