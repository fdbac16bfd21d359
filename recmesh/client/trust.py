"""Whom a client trusts, and what it says of a server that it cannot: no later try would end otherwise."""

import ssl
from collections.abc import Iterator

from recmesh.runtime.errors import InvalidArgument, MeshError, Unavailable, Violation

CERTIFICATE_OVER = "CERTIFICATE_OVER"
_TIMES = frozenset((9, 10))
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED."""
_NAMES = frozenset((62, 64))
"""X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"))
"""What OpenSSL makes of an answer in plain HTTP."""
_SETTINGS = "`--ca-file`, the context's own (`recmesh context add --ca-file`) or RECMESH_CA_FILE"


def trusting(ca_file: str) -> ssl.SSLContext:
    """By these certificates in place of the system's; InvalidArgument names a file that cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:                     # ssl.SSLError is one
        why = Violation("ca_file", f"{ca_file}: {error.strerror or error}")
        raise InvalidArgument("the server's certificate cannot be checked", violations=[why]) from error


def refusal(error: BaseException, *, url: str, ca_file: str) -> MeshError | None:
    """Why a server was not spoken to, where that is for good; None: it may be another time, as a server that restarts
    ends handshakes, too."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _of_certificate(cause, url, ca_file)
        if isinstance(cause, ssl.SSLError) and getattr(cause, "reason", "") in _NO_TLS:
            why = Violation("url", "nothing there speaks TLS: is it http://, or another port?")
            return InvalidArgument(f"{url} cannot be spoken to", reason="NO_TLS", violations=[why])
    return None


def _of_certificate(error: ssl.SSLCertVerificationError, url: str, ca_file: str) -> MeshError:
    if error.verify_code in _TIMES:
        return Unavailable(
            f"the certificate of {url} does not hold now ({error.verify_message}): whoever keeps the mesh renews it, "
            "unless this machine's clock is wrong", reason=CERTIFICATE_OVER,
        )  # fmt: skip
    if error.verify_code in _NAMES:
        why = Violation("url", f"{error.verify_message}: call the mesh by a name that is in its certificate")
    elif ca_file:
        why = Violation("ca_file", f"{ca_file} does not vouch for it ({error.verify_message}); it is from {_SETTINGS}")
    else:
        why = Violation(
            "ca_file", f"the system's certificates do not vouch for it ({error.verify_message}); name its authority's "
            f"file by {_SETTINGS}",
        )  # fmt: skip
    return InvalidArgument(f"the certificate of {url} is not trusted", reason="NOT_TRUSTED", violations=[why])


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
