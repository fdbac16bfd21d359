"""Writes what is derived: Grafana's dashboards, and the rules as an object of the Prometheus operator.

python infra/monitoring/generate.py [FOLDER]

A test holds the files to it, and every query to the metrics that services have.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SERVICES = ("brain", "jobmaster", "forecaster", "shardsvc", "ckptcache", "gateway")
OK, WARN, BAD, IDLE = "#56d08c", "#f0b252", "#ff7b78", "#9aa7b8"
"""As on the ops pages (recmesh/runtime/ops/static/ops.css), where colours mean the same."""
TONES = {
    "Pending": IDLE, "Starting": WARN, "Running": OK, "Scaling": WARN, "Recovering": WARN, "Suspended": WARN,
    "Succeeded": OK, "Failed": BAD, "Stopped": IDLE, "ok": OK, "error": BAD, "retried": WARN, "dead": BAD,
    "committed": OK, "stored": OK, "failed": BAD, "damaged": BAD, "done": OK,
}  # fmt: skip
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CALLS = "recmesh_rpc_server_seconds_count"
ANY = 'job=~"recmesh-.+"'
FAULTS = ',code=~"INTERNAL|UNKNOWN|DATA_LOSS|UNAVAILABLE"'
TRAINS, WAITS, FAILED = 'phase=~"Running|Scaling|Recovering"', 'phase=~"Pending|Starting"', 'phase="Failed"'
Panel = dict[str, Any]
Query = tuple[str, str]
"""PromQL, and the legend of its lines."""


def of(name: str, labels: str = "") -> str:
    """A selector within the chosen namespaces; machines without Kubernetes have none, which `.*` matches, too."""
    return f'{name}{{namespace=~"$namespace"{"," if labels else ""}{labels}}}'


def rate(name: str, labels: str = "", by: str = "") -> str:
    """Of a counter, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate({of(name, labels)}[$__rate_interval]))"


def quantile(share: float, name: str, labels: str = "", by: str = "") -> str:
    """Of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', labels, f'le, {by}' if by else 'le')})"


def lines(title: str, unit: str, *queries: Query, about: str = "", width: int = 8) -> Panel:
    """A chart over time. Series that are named like a state have its colour."""
    overrides = [
        {
            "matcher": {"id": "byRegexp", "options": f"/(^|\\s){word}$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for word, colour in TONES.items()
    ]
    return {
        "type": "timeseries", "title": title, "description": about, "width": width, "height": 8, "queries": queries,
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}},
            "overrides": overrides,
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }  # fmt: skip


def tile(title: str, unit: str, expr: str, *, bad_below: float | None = None, bad_above: float | None = None) -> Panel:
    """One number that matters; red on its bad side."""
    steps: list[dict[str, Any]] = [{"value": None, "color": OK}]
    if bad_below is not None:
        steps = [{"value": None, "color": BAD}, {"value": bad_below, "color": OK}]
    elif bad_above is not None:
        steps = [{"value": None, "color": OK}, {"value": bad_above, "color": BAD}]
    return {
        "type": "stat", "title": title, "description": "", "width": 4, "height": 4, "queries": [(expr, "")],
        "fieldConfig": {
            "defaults": {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}}, "overrides": [],
        },
        "options": {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}},
    }  # fmt: skip


def common(service: str) -> list[Panel]:
    """What every service has."""
    job = f'job="recmesh-{service}"'
    return [
        tile("ready", "short", f"max({of('recmesh_ready', job)})", bad_below=1),
        tile("processes", "short", f"sum({of('up', job)})", bad_below=1),
        tile("calls per second", "reqps", rate(CALLS, job)),
        tile("calls that fail", "percentunit",
             f"{rate(CALLS, job + FAULTS)} / {rate(CALLS, job)}", bad_above=0.05),
        tile("memory", "bytes", f"max({of('process_resident_memory_bytes', job)})"),
        tile("cores", "short", rate("process_cpu_seconds_total", job)),
    ]  # fmt: skip


def calls(service: str) -> list[Panel]:
    """The lower end of each dashboard."""
    job = f'job="recmesh-{service}"'
    return [
        lines("Calls answered", "reqps", (rate(CALLS, job, "method"), "{{method}}")),
        lines("Calls answered, p99", "s", (quantile(0.99, "recmesh_rpc_server_seconds", job, "method"), "{{method}}")),
        lines("Calls that are not OK", "reqps",
              (rate(CALLS, job + ',code!="OK"', "method, code"), "{{method}} {{code}}")),
        lines("Calls of others, p99", "s", (quantile(0.99, "recmesh_rpc_client_seconds", job, "method"), "{{method}}")),
        lines("Events published", "short", (rate("recmesh_bus_events_published_total", job, "type"), "{{type}}")),
        lines("Events handled", "short",
              (rate("recmesh_bus_events_handled_total", job, "durable, outcome"), "{{durable}} {{outcome}}")),
        lines("Events dropped", "short", (rate("recmesh_bus_offers_dropped_total", job, "type"), "{{type}}")),
        lines("Connections to NATS made again", "short", (rate("recmesh_bus_reconnects_total", job), "reconnects")),
        lines("Memory", "bytes", (of("process_resident_memory_bytes", job), "{{instance}}")),
    ]  # fmt: skip


JOB = 'job_id=~"$job_id"'
MODEL = 'model=~"$model"'
KEY = 'model=~"($model)/.*"'
"""CNs and HNs know models by name and version."""
OWN: Mapping[str, tuple[str, str, Sequence[Panel]]] = {
    "overview": ("recmesh", "", [
        tile("services ready", "short", f"count(max by (job) ({of('recmesh_ready')}) == 1) or vector(0)", bad_below=6),
        tile("jobs that train", "short", f"sum({of('recmesh_jobmaster_jobs', TRAINS)})"),
        tile("jobs that wait", "short", f"sum({of('recmesh_jobmaster_jobs', WAITS)})"),
        tile("failed jobs", "short", f"sum({of('recmesh_jobmaster_jobs', FAILED)})", bad_above=1),
        tile("samples per second", "short", f"sum({of('recmesh_jobmaster_samples_per_second')})"),
        tile("requests per second", "reqps", rate("recmesh_gateway_infer_seconds_count")),
        lines("Services", "short", (f"max by (job) ({of('recmesh_ready')})", "{{job}}"), about="1: ready"),
        lines("Jobs by phase", "short", (f"sum by (phase) ({of('recmesh_jobmaster_jobs')})", "{{phase}}")),
        lines("Samples per second", "short",
              (f"sum by (job_id) ({of('recmesh_jobmaster_job_samples_per_second')})", "{{job_id}}")),
        lines("Requests by model", "reqps", (rate("recmesh_gateway_infer_seconds_count", "", "model"), "{{model}}")),
        lines("Requests, p99", "s", (quantile(0.99, "recmesh_gateway_infer_seconds", "", "model"), "{{model}}")),
        lines("Snapshots", "short", (rate("recmesh_ckptcache_snapshots_total", "", "state"), "{{state}}")),
        lines("Memory", "bytes", (f"sum by (job) ({of('process_resident_memory_bytes', ANY)})", "{{job}}")),
        lines("Cores", "short", (rate("process_cpu_seconds_total", ANY, "job"), "{{job}}")),
        lines("Alerts that fire", "short",
              ('count by (alertname) (ALERTS{alertname=~"Recmesh.+",alertstate="firing"})', "{{alertname}}")),
    ]),
    "brain": ("what resources jobs get", "", [
        lines("Decisions", "short", (rate("recmesh_brain_decisions_total", "", "reason"), "{{reason}}")),
        lines("Changes", "short", (rate("recmesh_brain_changes_total", "", "verdict"), "{{verdict}}"),
              about="What came of jobs that were changed while they trained"),
        lines("First plans", "short", (rate("recmesh_brain_plans_total", "", "source"), "{{source}}")),
        lines("To decide", "s", (quantile(0.5, "recmesh_brain_decide_seconds"), "p50"),
              (quantile(0.99, "recmesh_brain_decide_seconds"), "p99")),
        lines("Profiles stored", "short", (rate("recmesh_brain_profiles_total"), "profiles")),
        lines("Jobs that ended", "short", (rate("recmesh_brain_histories_total", "", "outcome"), "{{outcome}}")),
        lines("Schedules of online jobs", "short",
              (rate("recmesh_brain_schedules_total", "", "planner, reason"), "{{planner}} {{reason}}"),
              (rate("recmesh_brain_unforecast_schedules_total"), "without a forecast")),
        lines("Data executors", "short", (rate("recmesh_brain_executor_decisions_total", "", "reason"), "{{reason}}")),
        lines("Served models", "short",
              (rate("recmesh_brain_serving_decisions_total", "", "kind, reason"), "{{kind}} {{reason}}")),
        lines("Room lent to serving", "short", (of("recmesh_brain_loan_units"), "{{state}}"),
              about="HNs that elastic jobs have shrunk for"),
        lines("Loans", "short", (rate("recmesh_brain_loan_moves_total", "", "state"), "{{state}}"),
              (rate("recmesh_brain_loan_renewals_total"), "renewed"),
              (rate("recmesh_brain_loan_late_returns_total"), "back late"),
              (rate("recmesh_brain_loan_evictions_total"), "evicted for online requests")),
        lines("Pods given a best node", "short",
              (rate("recmesh_brain_placement_decisions_total", "", "reason"), "{{reason}}"),
              about="Asked by the scheduler, whose extender brain is"),
        lines("Pods that no node was left for", "short",
              (rate("recmesh_brain_placement_refusals_total", "", "objection"), "{{objection}}"),
              (rate("recmesh_brain_placement_overruled_total"), "put elsewhere by the scheduler"),
              (rate("recmesh_brain_placement_looks_total", "", "outcome"), "looked again: {{outcome}}")),
        lines("Answers to the scheduler", "s",
              (quantile(0.5, "recmesh_brain_placement_seconds", "", "verb"), "{{verb}} p50"),
              (quantile(0.99, "recmesh_brain_placement_seconds", "", "verb"), "{{verb}} p99")),
        lines("Nodes that pods are placed on", "short", (of("recmesh_brain_placement_nodes"), "{{instance}}")),
    ]),
    "jobmaster": ("jobs and their roles", "job_id", [
        lines("Jobs by phase", "short", (f"sum by (phase) ({of('recmesh_jobmaster_jobs')})", "{{phase}}")),
        lines("Samples per second", "short", (of("recmesh_jobmaster_job_samples_per_second", JOB), "{{job_id}}")),
        lines("Progress", "percentunit",
              (f"{of('recmesh_jobmaster_job_samples', JOB)} / {of('recmesh_jobmaster_job_expected_samples', JOB)}",
               "{{job_id}}")),
        lines("Processes", "short", (of("recmesh_jobmaster_job_role_processes", JOB), "{{job_id}} {{role}}"),
              (of("recmesh_jobmaster_job_role_wanted", JOB), "{{job_id}} {{role}} wanted")),
        lines("Loss, AUC", "short", (of("recmesh_jobmaster_job_metric", JOB), "{{job_id}} {{name}}")),
        lines("Processes lost", "short",
              (f"increase({of('recmesh_jobmaster_job_failures_total', JOB)}[$__rate_interval])", "{{job_id}}"),
              (f"increase({of('recmesh_jobmaster_job_rollbacks_total', JOB)}[$__rate_interval])",
               "{{job_id}} rollbacks")),
        lines("Memory of the largest process, of its limit", "percentunit",
              (f"{of('recmesh_jobmaster_job_role_memory_bytes', JOB)} / "
               f"{of('recmesh_jobmaster_job_role_memory_limit_bytes', JOB)}", "{{job_id}} {{role}}")),
        lines("Age of the newest snapshot", "s",
              (f"time() - {of('recmesh_jobmaster_job_snapshot_timestamp_seconds', JOB)}", "{{job_id}}"),
              (of("recmesh_jobmaster_job_snapshot_every_seconds", JOB), "{{job_id}} asked for")),
        lines("Lag of topics", "s", (of("recmesh_jobmaster_job_lag_seconds", JOB), "{{job_id}}")),
        lines("Pause of a move of slots", "s", (quantile(0.5, "recmesh_jobmaster_move_pause_seconds"), "p50"),
              (quantile(0.99, "recmesh_jobmaster_move_pause_seconds"), "p99")),
        lines("Slots moved", "short", (rate("recmesh_jobmaster_slots_moved_total"), "slots"),
              (f"sum({of('recmesh_jobmaster_moves_under_way')})", "moves under way")),
        lines("Processes of all jobs", "short", (f"sum({of('recmesh_jobmaster_role_processes')})", "processes")),
    ]),
    "forecaster": ("rates and forecasts", "series", [
        lines("Expected rates", "short", (of("recmesh_forecaster_rate_forecast", 'series=~"$series"'),
            "{{series}} {{horizon}} s, {{quantile}}")),
        lines("Error of past forecasts", "percentunit",
              (of("recmesh_forecaster_past_wape", 'series=~"$series"'), "{{series}} {{lead}} s before")),
        lines("Truths within the interval", "percentunit",
              (of("recmesh_forecaster_past_coverage", 'series=~"$series"'), "{{series}} {{lead}} s before")),
        lines("Error in backtests, median", "percentunit",
              (quantile(0.5, "recmesh_forecaster_backtest_wape", "", "model"), "{{model}}")),
        lines("To forecast", "s", (quantile(0.5, "recmesh_forecaster_forecast_seconds"), "p50"),
              (quantile(0.99, "recmesh_forecaster_forecast_seconds"), "p99")),
        lines("Rates stored", "short", (rate("recmesh_forecaster_values_total"), "values"),
              (rate("recmesh_forecaster_series_refused_total"), "batches refused")),
        lines("Answers to scalers", "short",
              (rate("recmesh_forecaster_scaling_answers_total", "", "source"), "{{source}}")),
        lines("Model processes killed", "short", (rate("recmesh_forecaster_models_killed_total"), "killed")),
    ]),
    "shardsvc": ("datasets, tasks, leases", "job_id", [
        lines("Leases granted", "short", (rate("recmesh_shardsvc_leases_granted_total"), "leases")),
        lines("Leases back in the queue", "short",
              (rate("recmesh_shardsvc_leases_requeued_total", "", "cause"), "{{cause}}")),
        lines("To index a dataset", "s", (quantile(0.5, "recmesh_shardsvc_index_seconds"), "p50"),
              (quantile(0.99, "recmesh_shardsvc_index_seconds"), "p99")),
        lines("Lag of topics", "s",
              (f"max by (job_id) ({of('recmesh_shardsvc_topic_lag_seconds', JOB)})", "{{job_id}}")),
        lines("Messages not trained", "short",
              (f"sum by (job_id) ({of('recmesh_shardsvc_topic_lag_messages', JOB)})", "{{job_id}}")),
        lines("Streams written", "short", (rate("recmesh_shardsvc_stream_groups_total"), "groups"),
              (rate("recmesh_shardsvc_stream_windows_total"), "windows")),
        lines("Queues built again", "short", (rate("recmesh_shardsvc_queues_rebuilt_total"), "queues")),
    ]),
    "ckptcache": ("snapshots", "", [
        lines("Snapshots", "short", (rate("recmesh_ckptcache_snapshots_total", "", "state"), "{{state}}")),
        lines("Written to storage", "Bps",
              (rate("recmesh_ckptcache_written_bytes_total", "", "instance"), "{{instance}}")),
        lines("Copied to peers", "Bps",
              (rate("recmesh_ckptcache_replicated_bytes_total", "", "instance"), "{{instance}}")),
        lines("A part to storage", "s", (quantile(0.5, "recmesh_ckptcache_flush_seconds"), "p50"),
              (quantile(0.99, "recmesh_ckptcache_flush_seconds"), "p99")),
        lines("Parts", "short", (rate("recmesh_ckptcache_parts_flushed_total"), "parts")),
        lines("Shared memory", "bytes", (of("recmesh_ckptcache_memory_bytes"), "{{instance}}")),
    ]),
    "gateway": ("the API, models, inference", "model", [
        lines("Inferences", "reqps",
              (rate("recmesh_gateway_infer_seconds_count", MODEL, "model, outcome"), "{{model}} {{outcome}}")),
        lines("Inferences, time", "s",
              (quantile(0.5, "recmesh_gateway_infer_seconds", MODEL, "model"), "{{model}} p50"),
              (quantile(0.99, "recmesh_gateway_infer_seconds", MODEL, "model"), "{{model}} p99")),
        lines("Where a request's time goes, p99", "s",
              (quantile(0.99, "recmesh_gateway_infer_phase_seconds", MODEL, "phase"), "{{phase}}")),
        lines("Samples", "short", (rate("recmesh_gateway_infer_samples_total", MODEL, "model"), "{{model}}")),
        lines("Requests that were not answered", "reqps",
              (rate("recmesh_gateway_infer_failures_total", MODEL, "model, reason"), "{{model}} {{reason}}")),
        lines("Copies to shadows", "reqps",
              (rate("recmesh_gateway_shadow_requests_total", MODEL, "model, outcome"), "{{model}} {{outcome}}")),
        lines("Processes of models", "short", (of("recmesh_gateway_model_processes", MODEL), "{{model}} {{kind}}")),
        lines("Their busy share", "percentunit", (of("recmesh_gateway_model_busy_share", MODEL), "{{model}} {{kind}}")),
        lines("Processes started or ended", "short",
              (rate("recmesh_gateway_model_scalings_total", MODEL, "model, kind, outcome"),
               "{{model}} {{kind}} {{outcome}}")),
        lines("CN and HN: requests that wait for a model", "short",
              (f"sum by (model) ({of('recmesh_hn_queued', KEY)})", "HN {{model}}"),
              (f"sum by (model) ({of('recmesh_cn_queued', KEY)})", "CN {{model}}")),
        lines("HN: requests answered", "reqps", (rate("recmesh_hn_answered_total", KEY, "model"), "{{model}}")),
        lines("CN: HNs asked", "reqps", (rate("recmesh_cn_calls_total", KEY, "model"), "{{model}}"),
              (rate("recmesh_cn_hedges_total", KEY, "model"), "{{model}}, a second one")),
        lines("HN: admission", "reqps", (rate("recmesh_hn_admission_asked_total"), "asked"),
              (rate("recmesh_hn_admission_granted_total"), "granted"),
              (rate("recmesh_hn_admission_refused_total", "", "reason"), "refused: {{reason}}")),
        lines("HN: window and bytes on the way", "bytes",
              (f"sum({of('recmesh_hn_admission_window_bytes')})", "window"),
              (f"sum({of('recmesh_hn_admission_in_flight_bytes')})", "on the way")),
        lines("Snapshot that is served", "short",
              (of("recmesh_gateway_fresh_version", MODEL), "{{model}} {{version}}")),
        lines("From commit to service", "s",
              (of("recmesh_gateway_fresh_install_lag_seconds", MODEL), "{{model}} {{version}}")),
        lines("Ids by where their rows came from", "short",
              (f"sum by (tier) (deriv({of('recmesh_gateway_embedding_ids', MODEL)}[$__rate_interval]))", "{{tier}}")),
        lines("Predictions logged", "short", (rate("recmesh_gateway_predictions_logged_total"), "logged"),
              (rate("recmesh_gateway_predictions_dropped_total", "", "reason"), "dropped: {{reason}}")),
        lines("Labels", "short", (rate("recmesh_gateway_labels_posted_total", "", "known"), "known before: {{known}}")),
        lines("Requests to webhooks", "reqps",
              (rate("recmesh_gateway_webhook_attempts_total", "", "webhook, outcome"), "{{webhook}} {{outcome}}")),
        lines("Requests to webhooks, p99", "s", (quantile(0.99, "recmesh_gateway_webhook_seconds"), "p99")),
        lines("Events of webhooks", "short",
              (rate("recmesh_gateway_webhook_events_total", "", "webhook, outcome"), "{{webhook}} {{outcome}}"),
              (of("recmesh_gateway_webhook_behind"), "{{webhook}} not read yet")),
        lines("Changes in the audit", "short",
              (rate("recmesh_gateway_audit_entries_total", "", "outcome"), "{{outcome}}")),
        lines("HTTP requests", "reqps",
              (rate("recmesh_http_server_seconds_count", 'job="recmesh-gateway"', "route, status"),
               "{{route}} {{status}}")),
        lines("HTTP requests, p99", "s",
              (quantile(0.99, "recmesh_http_server_seconds", 'job="recmesh-gateway"', "route"), "{{route}}")),
    ]),
}  # fmt: skip
CHOICES = {
    "job_id": "recmesh_jobmaster_job_phase", "series": "recmesh_forecaster_rate_forecast",
    "model": "recmesh_gateway_infer_seconds_count",
}  # fmt: skip
"""Where the values of a variable are found."""


def dashboard(name: str) -> dict[str, Any]:
    """As Grafana imports it."""
    about, choice, own = OWN[name]
    shown = list(own) if name == "overview" else [*common(name), *own, *calls(name)]
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "source"},
        _variable("namespace", "label_values(recmesh_ready, namespace)"),
    ]
    if choice:
        variables.append(_variable(choice, f'label_values({CHOICES[choice]}{{namespace=~"$namespace"}}, {choice})'))
    return {
        "uid": f"recmesh-{name}", "title": f"recmesh / {name}", "description": about, "tags": ["recmesh"],
        "schemaVersion": 39, "version": 1, "editable": True, "refresh": "15s", "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables},
        "links": [
            {"type": "dashboards", "tags": ["recmesh"], "title": "recmesh", "asDropdown": True, "keepTime": True},
        ],
        "annotations": {"list": []}, "panels": _placed(shown),
    }  # fmt: skip


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2, "multi": True,
        "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """From left to right in 24 columns, row by row."""
    placed: list[dict[str, Any]] = []
    x = y = tallest = 0
    for number, panel in enumerate(panels, start=1):
        width, height = panel["width"], panel["height"]
        if x + width > 24 or (placed and placed[-1]["gridPos"]["h"] != height):
            x, y, tallest = 0, y + tallest, 0
        rest = {key: value for key, value in panel.items() if key not in ("width", "height", "queries")}
        targets = [
            {"refId": chr(65 + index), "expr": expr, "legendFormat": legend, "datasource": SOURCE}
            for index, (expr, legend) in enumerate(panel["queries"])
        ]
        placed.append(
            {
                "id": number, "datasource": SOURCE, "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "targets": targets,
            }
            | rest
        )
        x, tallest = x + width, max(tallest, height)
    return placed


def rules() -> dict[str, Any]:
    """All rules as one object."""
    groups = [
        group for path in sorted((HERE / "prometheus" / "rules").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]  # fmt: skip
    return {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "recmesh"},
        "spec": {"groups": groups},
    }  # fmt: skip


def files() -> dict[str, str]:
    """Contents by path below this folder."""
    made = {f"grafana/{name}.json": json.dumps(dashboard(name), indent=1) + "\n" for name in OWN}
    head = "# Made by generate.py from prometheus/rules.\n"
    return made | {"operator/rules.yaml": head + yaml.safe_dump(rules(), sort_keys=False, width=120)}


def main(folder: Path) -> None:
    """Write them."""
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
