"""Dashboards, alerts and the collector speak of what services tell, as their own programs say: promtool, Prometheus."""

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support import told_metrics
from tests.support.overlays import ROOT
from tests.support.prometheus import TARGET_LABELS, Asked, prometheus, promtool, taken_apart
from tests.support.servers import NatsServer, nats
from tests.support.service_process import service
from tests.support.told_metrics import SERVICES
from tests.support.waiting import until

__all__ = ["nats"]
HERE = ROOT / "infra" / "monitoring"
RULES = sorted((HERE / "prometheus" / "rules").glob("*.yaml"))
BY_PROMETHEUS = {"up": frozenset[str](), "ALERTS": frozenset({"alertname", "alertstate"})}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recmesh_monitoring_generate", HERE / "generate.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def told() -> Mapping[str, frozenset[str]]:
    """Labels by name of every series that a service can tell, whatever was imported here."""
    return told_metrics.told() | BY_PROMETHEUS


def alerts() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def panels() -> Iterator[tuple[str, str, str, str]]:
    """(dashboard, panel, query, legend)"""
    for path in sorted((HERE / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield path.stem, panel["title"], target["expr"], target["legendFormat"]


def without_variables(query: str) -> str:
    """As Grafana sends it."""
    return re.sub(r"\$(namespace|job_id|series|model)", ".*", query).replace("$__rate_interval", "1m")


def check(asked: Asked, told: Mapping[str, frozenset[str]], where: str) -> frozenset[str]:
    """All names and labels are told; the labels that lines may have."""
    assert asked.names, where
    assert asked.names <= told.keys(), f"{where}: nobody tells {sorted(asked.names - told.keys())}"
    for name, labels in asked.matched.items():
        assert labels <= told[name] | TARGET_LABELS, f"{where}: {name} has no {sorted(labels - told[name])}"
    known = frozenset[str]().union(*(told[name] for name in asked.names)) | TARGET_LABELS
    assert asked.grouped <= known, f"{where}: no {sorted(asked.grouped - known)}"
    return known


def test_a_query_is_taken_apart() -> None:
    asked = taken_apart(
        'sum by (a, le) (rate(x_total{b=~"y{z}",c!="d"}[5m])) / on (e) max(plain unless other offset 5m) > 0.5'
    )
    assert asked.names == {"x_total", "plain", "other"}
    assert asked.matched == {"x_total": {"b", "c"}} and asked.grouped == {"a", "le", "e"}


def test_files_are_what_is_generated(generate: ModuleType) -> None:
    for name, text in generate.files().items():
        assert (HERE / name).read_text() == text, f"{name}: run python infra/monitoring/generate.py"
    there = {f"grafana/{path.name}" for path in (HERE / "grafana").iterdir()} | {"operator/rules.yaml"}
    assert there == generate.files().keys()
    assert {"overview", *SERVICES} == {path.stem for path in (HERE / "grafana").iterdir()}


def test_dashboards_ask_for_what_is_told(told: Mapping[str, frozenset[str]]) -> None:
    for dashboard, panel, query, legend in panels():
        where = f"{dashboard}, {panel}"
        known = check(taken_apart(query), told, where)
        assert set(re.findall(r"{{(\w+)}}", legend)) <= known, where
        assert "$namespace" in query or "ALERTS" in query, where


def test_metrics_are_made_at_import_or_where_they_are_collected_from() -> None:
    assert set(told_metrics.made_in_functions()) == told_metrics.MADE_BY_OBJECTS


def test_what_services_tell_is_on_a_dashboard(told: Mapping[str, frozenset[str]]) -> None:
    shown = {name for _, _, query, _ in panels() for name in taken_apart(query).names}

    def is_shown(name: str) -> bool:
        suffixes = ("_bucket", "_count", "_sum", "")
        return any(re.sub(r"_(bucket|count|sum)$", suffix, name) in shown for suffix in suffixes)

    own = {
        name for name in told
        if re.match(rf"recmesh_({'|'.join(SERVICES)})_", name) and not name.endswith("_created")
    }
    assert {name for name in own if not is_shown(name)} - {"recmesh_jobmaster_job_phase"} == set()


def test_the_same_name_links_pages_to_dashboards() -> None:
    found = {path.stem: json.loads(path.read_text())["uid"] for path in (HERE / "grafana").glob("*.json")}
    assert found == {name: f"recmesh-{name}" for name in ("overview", *SERVICES)}


def test_alerts_ask_for_what_is_told_and_name_their_object(told: Mapping[str, frozenset[str]]) -> None:
    for rule in alerts():
        where = rule["alert"]
        asked = taken_apart(rule["expr"])
        known = check(asked, told, where)
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), where
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named and named <= known, where
        kept = asked.grouped | TARGET_LABELS if re.search(r"\b(sum|max|count) by", rule["expr"]) else known
        assert named <= kept, where


def test_every_alert_has_a_runbook_and_a_test() -> None:
    books = {path.name: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    sections = {
        f"docs/runbooks/{name}#{title.lower()}"
        for name, text in books.items() for title in re.findall(r"^## (\w+)$", text, re.MULTILINE)
    }
    given = {rule["annotations"]["runbook_url"] for rule in alerts()}
    assert given == sections
    for rule in alerts():
        assert rule["annotations"]["runbook_url"].endswith(f"#{rule['alert'].lower()}")
    tried = {
        item["alertname"] for path in (HERE / "prometheus" / "tests").glob("*.yaml")
        for test in yaml.safe_load(path.read_text())["tests"] for item in test["alert_rule_test"] if item["exp_alerts"]
    }
    assert tried == {rule["alert"] for rule in alerts()}


def test_promtool_takes_rules_and_configuration_and_the_alerts_fire_as_said(tmp_path: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", *RULES)
    (tmp_path / "rules").symlink_to(HERE / "prometheus" / "rules")
    (tmp_path / "mesh.json").write_text("[]")
    (tmp_path / "prometheus.yaml").write_text((HERE / "prometheus" / "prometheus.yaml").read_text())
    promtool("check", "config", tmp_path / "prometheus.yaml")
    tests = sorted((HERE / "prometheus" / "tests").glob("*.yaml"))
    promtool("test", "rules", *(path.name for path in tests), cwd=HERE / "prometheus" / "tests")


def test_promtool_takes_every_query_of_a_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"q:{number}", "expr": without_variables(query)} for number, (_, _, query, _) in enumerate(panels())
    ]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "queries.yaml")


@pytest.mark.long
@pytest.mark.integration
def test_prometheus_reads_services_and_tells_of_one_that_is_gone(nats: NatsServer, tmp_path: Path) -> None:
    with service("brain", tmp_path / "brain", env={"RECMESH_NATS_URL": nats.url}) as brain:
        address = brain.address("ops").removeprefix("http://")
        targets = [{"labels": {"job": "recmesh-brain"}, "targets": [address]}]
        (tmp_path / "mesh.json").write_text(json.dumps(targets))
        (tmp_path / "rules").symlink_to(HERE / "prometheus" / "rules")
        config = yaml.safe_load((HERE / "prometheus" / "prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with prometheus(tmp_path, tmp_path / "prometheus.yaml") as server:
            def ready() -> dict[str, float]:
                return {labels["job"]: value for labels, value in server.values("max by (job) (recmesh_ready)")}

            until(lambda: ready() == {"recmesh-brain": 1.0}, timeout_s=60)
            for _, _, query, _ in panels():
                server.get("query", query=without_variables(query))

            def known() -> dict[tuple[str, str], str]:
                return {
                    (item["labels"]["alertname"], item["labels"]["job"]): item["state"]
                    for item in server.get("alerts")["alerts"]
                }

            until(lambda: ("RecmeshServiceAbsent", "recmesh-gateway") in known(), timeout_s=60)
            assert "recmesh-brain" not in {job for _, job in known()}
            brain.kill()
            until(lambda: ("RecmeshServiceDown", "recmesh-brain") in known(), timeout_s=60)

            def health() -> list[str]:
                return [rule["health"] for group in server.get("rules")["groups"] for rule in group["rules"]]

            until(lambda: health() == ["ok"] * len(list(alerts())), timeout_s=60)

