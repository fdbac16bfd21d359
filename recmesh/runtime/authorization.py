"""The header `Authorization` of HTTP, as pages and metrics ask for it."""

import base64
import binascii
import hmac


def shows(token: str, authorization: str) -> bool:
    """It has the token: as a bearer, or as the password of any user. In the same time whatever is wrong."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    return hmac.compare_digest(given.encode(), token.encode())
