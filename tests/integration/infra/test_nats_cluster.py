"""The prod overlay's NATS: three servers with its configuration, TLS on all ways, streams on all of them."""

import contextlib
import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from nats.js import api

from recmesh.runtime.bus import Bus
from recmesh.runtime.bus.consumer import EVENT_STREAM
from recmesh.runtime.bus.kv import Entry, KeyValue
from recmesh.runtime.bus.link import Session
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.settings import ServiceSettings
from recmesh.runtime.tls import Tls
from tests.support.certificates import certificates
from tests.support.overlays import ROOT
from tests.support.servers import Server, free_port, nats_binary

CONFIGURATION = (ROOT / "infra" / "overlays" / "prod" / "nats.conf").read_text()
PERMISSIONS = (ROOT / "infra" / "overlays" / "prod" / "permissions.conf").read_text()
TOKEN = "t0ken"
"""Base's pods have one; here the certificate counts."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return certificates(tmp_path_factory.mktemp("tls"), name="jobmaster")


@pytest.fixture(scope="module")
def servers(tls: Tls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """As the pods are, with ports of this machine in place of pods' names."""
    folder = tmp_path_factory.mktemp("nats")
    (folder / "permissions.conf").write_text(PERMISSIONS)
    ports = [(free_port(), free_port(), free_port()) for _ in range(3)]
    made = []
    for number, (client, routes, monitor) in enumerate(ports):
        text = CONFIGURATION.replace("/tls/tls.crt", str(tls.cert)).replace("/tls/tls.key", str(tls.key))
        text = text.replace("/tls/ca.crt", str(tls.ca)).replace('"/data"', f'"{folder}/{number}"')
        text = text.replace("/tmp/nats.pid", f"{folder}/{number}.pid").replace("30GB", "2GB")
        for was, port in (("0.0.0.0:4222", client), ("0.0.0.0:6222", routes), ("0.0.0.0:8222", monitor)):
            text = text.replace(was, f"127.0.0.1:{port}")
        text = re.sub(r"nats-(\d)\.nats-peers:6222", lambda match: f"localhost:{ports[int(match[1])][1]}", text)
        file = folder / f"{number}.conf"
        file.write_text(text)
        with mock.patch.dict(os.environ, {"POD_NAME": f"nats-{number}"}):
            command = [nats_binary(), "-c", str(file)]
            made.append(Server(f"nats-{number}", command, port=client, folder=folder).start())
    yield made
    for server in made:
        server.kill()


def settings(servers: list[Server], tls: Tls) -> ServiceSettings:
    """As the overlay's pods have them."""
    return ServiceSettings.from_env({
        "RECMESH_NATS_URL": ",".join(f"tls://localhost:{server.port}" for server in servers),
        "RECMESH_NATS_TOKEN": TOKEN, "RECMESH_NATS_REPLICAS": "3",
        "RECMESH_TLS_CERT": str(tls.cert), "RECMESH_TLS_KEY": str(tls.key), "RECMESH_TLS_CA": str(tls.ca),
    }, "RECMESH_")  # fmt: skip


@pytest.mark.asyncio
async def test_streams_and_buckets_are_on_three_servers_and_outlive_one(servers: list[Server], tls: Tls) -> None:
    bus = Bus.of(settings(servers, tls), "jobmaster")
    await bus.start()
    try:
        bucket = bus.kv("recmesh_jobs")
        await bucket.create("a", b"1")
        for stream in (EVENT_STREAM, "KV_recmesh_jobs"):
            async def config(session: Session, name: str = stream) -> api.StreamConfig:
                return (await session.js.stream_info(name)).config

            assert (await bus.link.call("info", config)).num_replicas == 3
        servers[0].kill()                          # the one that the bus talks to
        entry = await _patiently(bucket, "a")
        assert entry is not None and entry.value == b"1"
        assert await bucket.update("a", b"2", entry.revision) > entry.revision
    finally:
        await bus.stop()


async def _patiently(bucket: KeyValue, key: str) -> Entry | None:
    """The others first choose who leads in place of the dead one, which takes them some seconds."""
    for _ in range(6):
        with contextlib.suppress(Unavailable):
            return await bucket.get(key)
    return await bucket.get(key)


@pytest.mark.asyncio
async def test_who_has_no_certificate_of_the_mesh_is_kept_out(servers: list[Server], tls: Tls) -> None:
    alive = servers[-1:]
    trusting = Tls(ca=tls.ca)
    for certificate in (None, trusting):
        bus = Bus(f"tls://localhost:{alive[0].port}", "tests", token=TOKEN, tls=certificate, connect_timeout_s=0.5)
        with pytest.raises(Unavailable):
            await bus.start()
        await bus.stop()


def test_a_certificate_that_is_none_is_told_by_its_setting(tls: Tls, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(InvalidArgument, match="no pair of PEM files"):
        Tls(cert=tmp_path / "bad.pem", key=tls.key, ca=tls.ca).client_context()
    with pytest.raises(InvalidArgument, match="cannot read"):
        Tls(ca=tmp_path / "absent.pem").client_context()
    assert tls.client_context().verify_mode is ssl.CERT_REQUIRED
