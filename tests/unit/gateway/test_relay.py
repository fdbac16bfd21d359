"""The gateway's own metrics have those of the CNs and HNs that it has started."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from prometheus_client import generate_latest

from services.gateway.ops import relay
from services.gateway.ops.relay import Relay
from services.gateway.runtimes.pool import RuntimeStatus

pytestmark = pytest.mark.asyncio
HN = {
    "role": "hn",
    "models": {
        "ctr/1": {"queued": 3, "running": 2, "answered": 40}, "ctr/2": {"queued": 0, "running": 0, "answered": 2},
    },
    "admission": {
        "window_bytes": 1024, "in_flight_bytes": 512, "congestion_level": 0.5, "bandwidth_bytes_per_s": 1e6,
        "waiting": 1, "waiting_bytes": 10, "asked": 9, "granted": 7, "arrived": 7, "cancelled": 1, "came_too_late": 0,
        "refused": {"TOO_LATE": 1},
    },
}  # fmt: skip
CN = {"role": "cn", "requests": 4, "models": {"ctr/1": {"queued": 1, "calls": 50, "hedges": 5}}}


def process(pid: int, kind: str) -> RuntimeStatus:
    return RuntimeStatus("torch", "2", pid, 0, 0, ("ctr/1",), kind)


async def told(*found: tuple[RuntimeStatus, Mapping[str, Any]]) -> str:
    async def ask() -> Sequence[tuple[RuntimeStatus, Mapping[str, Any]]]:
        return found

    made = Relay(ask)
    await made.look()
    return generate_latest(made.registry).decode()


async def test_each_process_has_series_of_its_own() -> None:
    text = await told(
        (process(7, "hn"), {"queued": {}, "status": HN}), (process(8, "hn"), {"status": {**HN, "admission": None}}),
        (process(9, "cn"), {"status": CN}),
    )
    for line in (
        'recmesh_hn_queued{model="ctr/1",process="7"} 3.0', 'recmesh_hn_queued{model="ctr/1",process="8"} 3.0',
        'recmesh_hn_answered_total{model="ctr/2",process="7"} 2.0',
        'recmesh_hn_admission_window_bytes{process="7"} 1024.0',
        'recmesh_hn_admission_refused_total{process="7",reason="TOO_LATE"} 1.0', 'recmesh_cn_requests{process="9"} 4.0',
        'recmesh_cn_hedges_total{model="ctr/1",process="9"} 5.0',
    ):  # fmt: skip
        assert line in text, text
    assert 'recmesh_hn_admission_window_bytes{process="8"}' not in text, "it is not asked"
    assert text.count("# TYPE recmesh_hn_queued gauge") == 1


async def test_a_process_that_is_down_or_silent_is_left_out() -> None:
    assert "recmesh_hn" not in await told((process(0, "hn"), {"status": HN}), (process(7, "hn"), {}), (
        process(8, "hn"), {"status": {}},
    ))  # fmt: skip


async def test_processes_that_hang_keep_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PATIENCE_S", 0.01)

    async def ask() -> Sequence[tuple[RuntimeStatus, Mapping[str, Any]]]:
        await asyncio.Event().wait()
        return ()

    made = Relay(ask)
    await made.look()
    assert generate_latest(made.registry) == b""


async def test_pods_have_ports_of_their_own_and_are_not_asked() -> None:
    made = Relay(None)
    await made.look()
    assert generate_latest(made.registry) == b""
