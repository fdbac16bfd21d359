"""Certificates of one process, for both directions of the mesh."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from recmesh.runtime.errors import InvalidArgument, Violation


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. With `ca` a server asks its clients for a certificate too (mTLS)."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    server_name: str = ""
    """The name to expect in servers' certificates, where addresses are bare IPs."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "tls_key" if self.key is None else "tls_cert"
            raise InvalidArgument(
                "TLS needs the certificate and its key",
                violations=[Violation(missing, "is missing while the other one is given")],
            )

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """(certificate, key, CA) as PEM bytes; InvalidArgument names the file that cannot be read."""
        return _read("tls_cert", self.cert), _read("tls_key", self.key), _read("tls_ca", self.ca)

    def client_context(self) -> ssl.SSLContext:
        """For clients that are not gRPC; read anew, so that renewed certificates count. InvalidArgument as `read`."""
        self.read()
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except ssl.SSLError as error:
            reason = f"is no usable certificate, or not its key: {error.reason}"
            raise InvalidArgument(f"TLS: {reason}", violations=[Violation("tls_cert", reason)]) from None
        return context


def _read(setting: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        reason = f"cannot read {path}: {error.strerror}"
        raise InvalidArgument(
            f"{setting}: {reason}", violations=[Violation(setting, reason)]
        ) from None
