"""Who is told the metrics of a CN or HN."""

import base64
import http.client
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving import metrics, process
from tests.support.certificates import certificates


def state() -> dict[str, Any]:
    return {"role": "cn", "models": {}, "requests": 2}


def asked(
    url: str, path: str, authorization: str = "", *, trusting: ssl.SSLContext | None = None
) -> tuple[int, str]:
    scheme, _, address = url.partition("://")
    headers = {"Authorization": authorization} if authorization else {}
    port = address.rpartition(":")[2]
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=trusting) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_on_loopback_they_are_told_to_all() -> None:
    url = metrics.serve("127.0.0.1:0", state, keys=["scrape"])
    status, text = asked(url, "/metrics")
    assert status == 200 and "recmesh_cn_requests 2.0" in text
    assert asked(url, "/other")[0] == 404


def test_beyond_loopback_they_are_told_to_who_shows_a_key() -> None:
    url = metrics.serve("0.0.0.0:0", state, keys=["scrape", "mesh", ""])
    basic = base64.b64encode(b"prometheus:scrape").decode()
    for shown in ("Bearer scrape", "Bearer mesh", f"Basic {basic}"):
        status, text = asked(url, "/metrics", shown)
        assert status == 200 and "recmesh_cn_requests 2.0" in text, shown
    for shown in ("", "Bearer ", "Bearer", "Bearer other", "Basic ???", "scrape"):
        for path in ("/metrics", "/", "/healthz/", "//metrics"):
            status, text = asked(url, path, shown)
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
    url = capsys.readouterr().err.split()[-1].removesuffix("/metrics")
    assert [asked(url, "/metrics", shown)[0] for shown in ("", "Bearer scrape", "Bearer mesh")] == [401, 200, 200]
    assert not process.measured("0.0.0.0:0", state, {})
    assert "RECMESH_API_KEY must be set" in capsys.readouterr().err


def test_with_a_certificate_they_are_told_by_https_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tls = certificates(tmp_path / "ours", names=["127.0.0.1"])
    other = certificates(tmp_path / "theirs", names=["127.0.0.1"])
    environment = {
        "RECMESH_METRICS_KEY": "scrape", "RECMESH_HTTP_TLS_CERT": str(tls.cert), "RECMESH_HTTP_TLS_KEY": str(tls.key)
    }
    assert process.measured("0.0.0.0:0", state, environment)
    url = capsys.readouterr().err.split()[-1].removesuffix("/metrics")
    assert url.startswith("https://")
    trusting = ssl.create_default_context(cafile=tls.ca)
    idle = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))     # shakes no hands, hinders none
    status, text = asked(url, "/metrics", "Bearer scrape", trusting=trusting)
    assert status == 200 and "recmesh_cn_requests 2.0" in text
    assert asked(url, "/metrics", trusting=trusting)[0] == 401
    assert asked(url, "/healthz", trusting=trusting) == (200, "ok")
    idle.close()
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        asked(url, "/healthz", trusting=ssl.create_default_context(cafile=other.ca))
    with pytest.raises((http.client.HTTPException, OSError)):
        asked(url.replace("https", "http"), "/healthz")
    assert asked(url, "/healthz", trusting=trusting) == (200, "ok")
    assert capsys.readouterr().err == ""            # strangers' handshakes are not worth a line


def test_half_a_certificate_or_one_that_cannot_be_read_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"RECMESH_METRICS_KEY": "scrape", "RECMESH_HTTP_TLS_CERT": "/nowhere/tls.crt"}
    assert not process.measured("127.0.0.1:0", state, environment)
    assert "the certificate and its key" in capsys.readouterr().err
    assert not process.measured("127.0.0.1:0", state, environment | {"RECMESH_HTTP_TLS_KEY": "/nowhere/tls.key"})
    assert "http_tls_cert: cannot read /nowhere/tls.crt" in capsys.readouterr().err
