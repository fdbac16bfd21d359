"""Certificates of one process, for both directions of the mesh. Renewed files count from the next connection."""

import logging
import os
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from recmesh.runtime.errors import InvalidArgument, Violation

log = logging.getLogger(__name__)
T = TypeVar("T")
PREFIX = "RECMESH_TLS_"
ROLE_NAME = f"{PREFIX}ROLE_NAME"
"""What certificates of jobs' roles are issued for; without it as those of services."""
_READS = 3
"""Of files that are replaced while they are read."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. With `ca` a server asks its clients for a certificate too (mTLS)."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    server_name: str = ""
    """The name to expect in servers' certificates, where addresses are bare IPs."""
    prefix: str = "tls"
    """Of the settings' names, for errors."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = f"{self.prefix}_key" if self.key is None else f"{self.prefix}_cert"
            raise InvalidArgument(
                "TLS needs the certificate and its key",
                violations=[Violation(missing, "is missing while the other one is given")],
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Tls | None":
        """As services read `RECMESH_TLS_CERT`, `_KEY`, `_CA` and `_SERVER_NAME`; None without any. InvalidArgument."""
        paths = {each: Path(env[f"{PREFIX}{each}"]) for each in ("CERT", "KEY", "CA") if env.get(f"{PREFIX}{each}")}
        if not paths:
            return None
        name = env.get(f"{PREFIX}SERVER_NAME", "")
        return cls(cert=paths.get("CERT"), key=paths.get("KEY"), ca=paths.get("CA"), server_name=name)

    def expecting(self, name: str) -> "Tls":
        """The same for servers of another name; "": of the same one."""
        return replace(self, server_name=name or self.server_name)

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """(certificate, key, CA) as PEM bytes that fit each other; InvalidArgument names the file that is wrong."""
        left = _READS
        while True:
            before, left = self.stamp(), left - 1
            found = self._read("cert", self.cert), self._read("key", self.key), self._read("ca", self.ca)
            try:
                self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            except InvalidArgument:
                if not left or before == self.stamp():
                    raise
            else:
                if not left or before == self.stamp():
                    return found

    def stamp(self) -> tuple[Any, ...]:
        """Differs from an earlier one when a file was replaced or written since."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.ca))

    def client_context(self, *, least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
        """For clients that are not gRPC, by the files as they are now. InvalidArgument as `read`.

        Without a CA servers' certificates must be of one that the machine trusts.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = least
        self.load_into(context)
        if self.ca is None:
            context.load_default_certs()
        return context

    def server_context(self, *, least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
        """As above, for servers, which must have a certificate."""
        if self.cert is None:
            raise self._wrong("cert", "is not set, and a server needs a certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = least
        self.load_into(context)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """What is here. InvalidArgument names the file that cannot be read, is no certificate, or is of another key."""
        for setting, path in (("cert", self.cert), ("key", self.key), ("ca", self.ca)):
            self._read(setting, path)           # says which file cannot be read, as the next ones do not
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (ssl.SSLError, OSError) as error:
                reason = f"{self.cert} and its key are no pair of PEM files: {getattr(error, 'reason', error)}"
                raise self._wrong("cert", reason) from None
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except (ssl.SSLError, OSError) as error:
                reason = f"{self.ca} holds no certificate: {getattr(error, 'reason', error)}"
                raise self._wrong("ca", reason) from None

    def _read(self, setting: str, path: Path | None) -> bytes | None:
        if path is None:
            return None
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._wrong(setting, f"cannot read {path}: {error.strerror}") from None

    def _wrong(self, setting: str, reason: str) -> InvalidArgument:
        name = f"{self.prefix}_{setting}"
        return InvalidArgument(f"{name}: {reason}", reason="BAD_CERTIFICATE", violations=[Violation(name, reason)])


class Renewed(Generic[T]):
    """What is made of a process' certificates, and made anew when their files change. For all threads.

    Files that are not whole at that moment change nothing: what was made before stays, and they are read again by the
    next who asks.
    """

    def __init__(
        self, tls: Tls, make: Callable[[], T], *, every_s: float = 0.0, clock: Callable[[], float] = monotonic
    ) -> None:
        """`every_s`: the files are looked at so often at most. InvalidArgument when they cannot be used now."""
        self._tls, self._make, self._every_s, self._clock = tls, make, every_s, clock
        self._lock = threading.Lock()
        self._stamp = tls.stamp()
        self._made = make()
        self._look_at = clock() + every_s
        self._complained: tuple[Any, ...] = ()

    def now(self) -> T:
        """The newest."""
        if self._every_s and self._clock() < self._look_at:
            return self._made
        with self._lock:
            self._look_at = self._clock() + self._every_s
            stamp = self._tls.stamp()
            if stamp != self._stamp:
                self._renew(stamp)
            return self._made

    def _renew(self, stamp: tuple[Any, ...]) -> None:
        try:
            self._made = self._make()
        except InvalidArgument as error:
            if stamp != self._complained:
                self._complained = stamp
                log.warning("renewed certificates are not used, the ones before stay: %s", error)
            return
        self._stamp = stamp
        log.info("certificates were renewed: %s", self._tls.cert or self._tls.ca)


def renewing(tls: Tls, *, least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
    """As `Tls.server_context`, and each handshake is by the files as they are then."""
    newest = Renewed(tls, lambda: tls.server_context(least=least))
    context = tls.server_context(least=least)

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, first: ssl.SSLContext) -> None:
        connection.context = newest.now()

    context.sni_callback = choose       # OpenSSL asks it whether or not the client names a server
    return context


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
