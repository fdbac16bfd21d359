"""One MLflow run per job, found again by its tags after a restart, on whichever side."""

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from recmesh.tracking import Report

STATUS = {"Succeeded": "FINISHED", "Failed": "FAILED", "Stopped": "KILLED"}
JOB, CREATED = "recmesh.job", "recmesh.created"
SOURCE = "mlflow.source.name"
"""Comes with the parameters, so a run without it lacks them: the server went away in between."""
MAX_RUNS = 4096
MAX_TEXT = 500
"""Of a parameter's value; servers of all versions take so much."""


class Mlflow:
    """Through a tracking server, or a store that the library reaches itself (`sqlite:///...`)."""

    def __init__(self, uri: str) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        self._runs: dict[tuple[str, float], str] = {}

    def write(self, report: Report) -> None:
        """Metrics at their step; the job's end ends the run. A run that ended takes no more."""
        key = (report.job_id, report.created)
        run_id = self._runs.get(key) or self._run(report)
        if not run_id:
            return
        metrics = [Metric(name, value, int(report.at * 1000), report.step) for name, value in report.metrics.items()]
        self._client.log_batch(run_id, metrics=metrics)
        if report.ended:
            self._client.set_terminated(run_id, STATUS.get(report.ended, "FINISHED"), end_time=int(report.at * 1000))
            self._runs[key] = ""
            return
        if len(self._runs) >= MAX_RUNS:
            self._runs.pop(next(iter(self._runs)))
        self._runs[key] = run_id

    def close(self) -> None:
        """Nothing is buffered."""

    def _run(self, report: Report) -> str:
        """The job's run; made where there is none. '': it has ended."""
        if self._runs.get((report.job_id, report.created)) == "":
            return ""
        experiment = self._experiment(report.experiment)
        created = f"{report.created:.3f}"
        found = self._client.search_runs(
            [experiment], f"tags.`{JOB}` = '{report.job_id}' and tags.`{CREATED}` = '{created}'", max_results=1
        )
        if found:
            run_id = str(found[0].info.run_id) if found[0].info.status == "RUNNING" else ""
            if run_id and SOURCE not in found[0].data.tags:
                self._describe(run_id, report)
            return run_id
        made = self._client.create_run(
            experiment, start_time=int(report.created * 1000), run_name=report.job_id,
            tags={JOB: report.job_id, CREATED: created},
        )
        self._describe(run_id := str(made.info.run_id), report)
        return run_id

    def _describe(self, run_id: str, report: Report) -> None:
        params = [Param(name, value[:MAX_TEXT]) for name, value in report.params.items()]
        self._client.log_batch(run_id, params=params, tags=[RunTag(SOURCE, "recmesh")])

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))
