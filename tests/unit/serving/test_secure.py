"""TLS between CN and HN, with certificates that openssl made: mutual, both ways at once, refusals that say why."""

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from recmesh.runtime.errors import InvalidArgument, Unauthenticated, Unavailable
from recmesh.runtime.tls import Tls
from recmesh.serving import process
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Transport
from recmesh.serving.transport.endpoints import Endpoint, Listener, dial, dialling
from tests.support.certificates import certificates

TOKEN = "the mesh's"


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return certificates(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return certificates(tmp_path_factory.mktemp("theirs"))


@contextmanager
def echoing(tls: Tls, said: list[str]) -> Iterator[Endpoint]:
    listener = Listener(Endpoint.parse("tcp:127.0.0.1:0"), token=TOKEN, log=said.append, tls=tls)

    def serve(transport: Transport) -> None:
        while (message := transport.receive()) is not None:
            transport.send(message.header, message.tensors)
            del message

    thread = threading.Thread(target=listener.accept, args=(serve,))
    thread.start()
    try:
        yield listener.endpoint
    finally:
        listener.close()
        thread.join()


def test_large_frames_go_both_ways_at_once_encrypted(mine: Tls) -> None:
    large = np.arange(3 << 20, dtype=np.uint8)
    with echoing(mine, []) as endpoint:
        transport = dial(endpoint, token=TOKEN, timeout_s=5.0, tls=mine)
        count = 12

        def send() -> None:
            for number in range(count):
                transport.send({"op": "echo", "call": number}, [Tensor.of("x", large + number)])

        sending = threading.Thread(target=send)
        sending.start()                          # while this thread reads
        for number in range(count):
            message = transport.receive()
            assert message is not None and message.header["call"] == number
            assert np.array_equal(message.tensors[0].array, large + np.uint8(number))
        sending.join()
        transport.close()
        assert transport.receive() is None


def test_who_speaks_no_tls_or_shows_no_certificate_or_a_strangers_is_kept_out(mine: Tls, theirs: Tls) -> None:
    said: list[str] = []
    with echoing(mine, said) as endpoint:
        with pytest.raises(Unavailable):
            dial(endpoint, token=TOKEN, timeout_s=5.0)
        nameless = Tls(ca=mine.ca, server_name="localhost")
        with pytest.raises(Unauthenticated, match="CERTIFICATE_REQUIRED"):
            dial(endpoint, token=TOKEN, timeout_s=5.0, tls=nameless)
        with pytest.raises(Unauthenticated):
            dial(endpoint, token=TOKEN, timeout_s=5.0, tls=dataclasses.replace(theirs, ca=mine.ca))
        with pytest.raises(Unauthenticated, match="token"):
            dial(endpoint, token="another's", timeout_s=5.0, tls=mine)
        dial(endpoint, token=TOKEN, timeout_s=5.0, tls=mine).close()
    assert len(said) >= 4


def test_a_server_with_another_certificate_or_name_is_not_spoken_to(mine: Tls, theirs: Tls) -> None:
    with echoing(theirs, []) as endpoint, pytest.raises(Unauthenticated, match="certificate"):
        dial(endpoint, token=TOKEN, timeout_s=5.0, tls=mine)
    other = dataclasses.replace(mine, server_name="elsewhere")
    with echoing(mine, []) as endpoint, pytest.raises(Unauthenticated, match="elsewhere"):
        dial(endpoint, token=TOKEN, timeout_s=5.0, tls=other)


def test_wrong_files_are_named(mine: Tls, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    with pytest.raises(InvalidArgument, match=r"tls_ca: .*nonsense\.pem holds no certificate"):
        dialling(token=None, tls=dataclasses.replace(mine, ca=nonsense))
    with pytest.raises(InvalidArgument, match="tls_cert"):
        Listener(Endpoint.parse("tcp:127.0.0.1:0"), token=None, log=print, tls=Tls(ca=mine.ca))


def test_a_process_takes_the_certificates_of_its_services(mine: Tls) -> None:
    names = {"RECMESH_TLS_CERT": mine.cert, "RECMESH_TLS_KEY": mine.key, "RECMESH_TLS_CA": mine.ca}
    found = process.tls({**{name: str(path) for name, path in names.items()}, "RECMESH_TLS_SERVER_NAME": "localhost"})
    assert found == mine and process.tls({}) is None
