"""Signatures of webhooks, by Standard Webhooks 1.0 (https://www.standardwebhooks.com): HMAC-SHA256 over id, time, body.

The signed text is `ID.TIMESTAMP.BODY`, so neither of them can be exchanged, and a receiver that refuses old timestamps
and ids that it has seen cannot be told the same thing twice by a stranger who listened.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from recmesh.runtime.errors import InvalidArgument, Violation

PREFIX = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64
"""Of a secret, by the standard."""


def secret_of(key: bytes) -> str:
    """A secret as people see it."""
    return PREFIX + base64.b64encode(key).decode()


def key_of(secret: str) -> bytes:
    """Its bytes; InvalidArgument names `secret` when it is none."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True) if secret.startswith(PREFIX) else b""
    except (binascii.Error, ValueError):
        key = b""
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        reason = f"is not {PREFIX} and {LEAST_BYTES} to {MOST_BYTES} bytes in Base64"
        raise InvalidArgument(f"the secret {reason}", reason="BAD_WEBHOOK", violations=[Violation("secret", reason)])
    return key


def message_id(source: str, event_id: str) -> str:
    """The same of each attempt of an event; without full stops, which the signed text has between its parts."""
    return "evt_" + hashlib.sha256(f"{source}/{event_id}".encode()).hexdigest()[:32]


def signature(secret: str, *, id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the Base64 of the HMAC."""
    digest = hmac.new(key_of(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def headers(secrets: Sequence[str], *, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """What a request carries; signed by each secret, of which a receiver needs to know one."""
    signed = " ".join(signature(each, id=id, timestamp=timestamp, body=body) for each in secrets)
    return {"webhook-id": id, "webhook-timestamp": str(timestamp), "webhook-signature": signed}
