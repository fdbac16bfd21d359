"""Who is told the metrics of a CN or HN."""

import base64
import urllib.error
import urllib.request
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving import metrics, process


def state() -> dict[str, Any]:
    return {"role": "cn", "models": {}, "requests": 2}


def asked(address: str, path: str, authorization: str = "") -> tuple[int, str]:
    port = address.rpartition(":")[2]
    headers = {"Authorization": authorization} if authorization else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_on_loopback_they_are_told_to_all() -> None:
    address = metrics.serve("127.0.0.1:0", state, keys=["scrape"])
    status, text = asked(address, "/metrics")
    assert status == 200 and "recmesh_cn_requests 2.0" in text
    assert asked(address, "/other")[0] == 404


def test_beyond_loopback_they_are_told_to_who_shows_a_key() -> None:
    address = metrics.serve("0.0.0.0:0", state, keys=["scrape", "mesh", ""])
    basic = base64.b64encode(b"prometheus:scrape").decode()
    for shown in ("Bearer scrape", "Bearer mesh", f"Basic {basic}"):
        status, text = asked(address, "/metrics", shown)
        assert status == 200 and "recmesh_cn_requests 2.0" in text, shown
    for shown in ("", "Bearer ", "Bearer", "Bearer other", "Basic ???", "scrape"):
        for path in ("/metrics", "/", "/healthz/", "//metrics"):
            status, text = asked(address, path, shown)
            assert status == 401 and "recmesh_cn" not in text, (path, shown)


def test_probes_need_no_key() -> None:
    assert asked(metrics.serve("0.0.0.0:0", state, keys=["scrape"]), "/healthz") == (200, "ok")


def test_beyond_loopback_nothing_is_served_without_a_key() -> None:
    with pytest.raises(InvalidArgument, match="RECMESH_METRICS_KEY") as caught:
        metrics.serve("0.0.0.0:0", state, keys=["", ""])
    assert [each.path for each in caught.value.violations] == ["--metrics"]


def test_a_process_takes_both_keys_from_its_environment(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"RECMESH_METRICS_KEY": "scrape", "RECMESH_API_KEY": "mesh"}
    assert process.measured("0.0.0.0:0", state, environment)
    address = capsys.readouterr().err.split("//")[1].partition("/")[0]
    assert [asked(address, "/metrics", shown)[0] for shown in ("", "Bearer scrape", "Bearer mesh")] == [401, 200, 200]
    assert not process.measured("0.0.0.0:0", state, {})
    assert "RECMESH_API_KEY must be set" in capsys.readouterr().err
