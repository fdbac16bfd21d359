"""How recmesh's channels and servers are set up. The same for asyncio and for threads."""

from typing import Any

import grpc
import orjson

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.lifecycle import PortTaken
from recmesh.runtime.net import check_free
from recmesh.runtime.tls import Renewed, Tls

MAX_MESSAGE_BYTES = 1 << 30
"""Rows of a large batch travel in one message; streams carry what is larger."""

MAX_METADATA_BYTES = 256 << 10
"""Room for the violations of a large specification in the trailing metadata."""

LOOK_S = 5.0
"""Channels that are used look this often whether their certificates were renewed: a look is three calls of stat."""

DEFAULT_TIMEOUT_S = 10.0
"""Of a call with one response whose caller gave no deadline. Streams have none of their own."""

SERVICE_CONFIG = orjson.dumps({
    "methodConfig": [{
        "name": [{}],
        # A call waits for a server that restarts, as long as its deadline allows.
        "waitForReady": True,
        "retryPolicy": {
            "maxAttempts": 5,      # gRPC's own upper bound
            "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        },
    }],
}).decode()

_COMMON: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
)

SERVER_OPTIONS: tuple[tuple[str, Any], ...] = (
    *_COMMON,
    ("grpc.so_reuseport", 0),      # two processes on one port would share its calls silently
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    *_COMMON,
    ("grpc.service_config", SERVICE_CONFIG),
    ("grpc.enable_retries", 1),
    ("grpc.enable_http_proxy", 0),                   # the mesh's own calls never leave through a proxy
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A killed server is back within seconds at the same address: ask often.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),        # this one is the time a connection attempt may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def channel_options(tls: Tls | None) -> list[tuple[str, Any]]:
    """Options of a channel; with TLS perhaps the name to expect."""
    named = [("grpc.ssl_target_name_override", tls.server_name)] if tls and tls.server_name else []
    return [*CHANNEL_OPTIONS, *named]


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Server side; asks for the client's certificate when a CA is configured. Each handshake is by the newest files."""
    if tls.cert is None or tls.key is None:
        raise InvalidArgument(
            "a server with TLS needs a certificate and its key",
            violations=[Violation("tls_cert", "is missing"), Violation("tls_key", "is missing")],
        )
    newest = Renewed(tls, lambda: _certificates(tls))
    first = newest.now()
    shown = [first]

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """None: as before. In gRPC's threads."""
        found = newest.now()
        if found is shown[0]:
            return None
        shown[0] = found
        return found

    return grpc.dynamic_ssl_server_credentials(
        first, changed,  # type: ignore[arg-type]  # gRPC takes None for "as before"; its stubs do not know
        require_client_authentication=tls.ca is not None,
    )


def _certificates(tls: Tls) -> grpc.ServerCertificateConfiguration:
    cert, key, ca = tls.read()
    assert cert is not None and key is not None
    return grpc.ssl_server_certificate_configuration([(key, cert)], ca)


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Client side; without a CA the system's roots are trusted."""
    cert, key, ca = tls.read()
    return grpc.ssl_channel_credentials(ca, key, cert)


def bind(server: Any, address: str, *, tls: Tls | None, what: str) -> int:
    """Listen; returns the port. PortTaken when it cannot, InvalidArgument when the address is none."""
    unix = address.startswith("unix:")
    if not unix:   # first by hand: gRPC prints to stderr, and does not say why it failed
        check_free(address, what=what, setting="rpc_address")
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, server_credentials(tls))
    except RuntimeError:   # taken since the check
        raise PortTaken(what, address) from None
    if bound == 0 and not unix:
        raise PortTaken(what, address)
    return int(bound)


def at_port(address: str, port: int) -> str:
    """The address with the port that was really bound."""
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
