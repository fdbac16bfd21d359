"""Credentials that the gateway knows: one key for everything, a file of keys, a file of JWT keys (JWKS).

Files are read again when they change, so that a key is withdrawn without a restart. One that cannot be read then lets
nobody in, and what is wrong with it is for the log: callers whom nobody knows yet must not read of keys.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import jwt
import orjson
import yaml

from recmesh.runtime import telemetry
from recmesh.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    Unauthenticated,
    Unavailable,
    Violation,
)
from services.gateway.domain import callers
from services.gateway.domain.callers import ANYONE, Caller

ALGORITHMS: Mapping[str, str] = {"oct": "HS256", "RSA": "RS256"}
"""One for each kind of key: a public RSA key must never be taken for a shared secret."""
LEEWAY_S = 30.0
MASTER = Caller("the mesh's key")

T = TypeVar("T")

_log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where credentials are; none of them: nobody is asked for any."""

    api_key: str | None = None
    """May do everything."""
    keys_file: Path | None = None
    jwks_file: Path | None = None
    issuer: str = ""
    audience: str = ""


class Credentials:
    """Checks what callers show."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._keys = _File(sources.keys_file, _keys) if sources.keys_file else None
        self._jwks = _File(sources.jwks_file, _jwks) if sources.jwks_file else None

    def check_files(self) -> None:
        """Read them once, so that a wrong one is told of at the start."""
        for file in (self._keys, self._jwks):
            if file is not None:
                file.read()

    def caller(self, header: str) -> Caller:
        """Whose `Authorization: Bearer ...` that is; Unauthenticated when it is nobody's, Unavailable while a file of
        credentials cannot be read."""
        if self._sources.api_key is None and self._keys is None and self._jwks is None:
            return ANYONE
        if not header:
            what = "an API key" if self._jwks is None else "an API key or a token (JWT)"
            raise Unauthenticated(f"{what} is needed: Authorization: Bearer ...", reason="NO_CREDENTIAL")
        scheme, _, credential = header.partition(" ")
        credential = credential.strip()
        found = self._known(credential) if scheme.lower() == "bearer" and credential else None
        if found is None:
            what = "the API key is wrong" if self._jwks is None else "this is no known API key, nor a token (JWT)"
            raise Unauthenticated(what, reason="WRONG_CREDENTIAL")
        return found

    def _known(self, credential: str) -> Caller | None:
        master = self._sources.api_key
        if master is not None and hmac.compare_digest(credential.encode(), master.encode()):
            return MASTER
        if self._keys is not None:
            # Looked up by digest: how long that takes tells nothing of the keys.
            found = self._keys.current().get(hashlib.sha256(credential.encode()).hexdigest())
            if found is not None:
                return found
        if self._jwks is not None and credential.count(".") == 2:
            return self._token(credential, self._jwks.current())
        return None

    def _token(self, token: str, keys: Mapping[str, tuple[str, Any]]) -> Caller:
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))
            if key_id not in keys and not (len(keys) == 1 and not key_id):
                raise Unauthenticated("the token's key is not known", reason="WRONG_CREDENTIAL")
            algorithm, key = keys[key_id] if key_id in keys else next(iter(keys.values()))
            claims = jwt.decode(
                token, key, algorithms=[algorithm], issuer=self._sources.issuer or None,
                audience=self._sources.audience or None, leeway=LEEWAY_S,
                options={"require": ["exp", "sub"], "verify_aud": bool(self._sources.audience)},
            )  # fmt: skip
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(f"the token is not taken: {error}", reason="WRONG_CREDENTIAL") from None
        rights = {
            "scopes": [item for item in str(claims.get("scope", "")).split() if item in callers.SCOPES],
            "models": claims.get("recmesh_models"), "namespaces": claims.get("recmesh_namespaces"),
            "rate": claims.get("recmesh_rate"),
        }  # fmt: skip
        try:
            return callers.parse(str(claims["sub"]), rights, "token")
        except InvalidArgument as error:
            raise Unauthenticated(f"the token's rights are wrong: {error}", reason="WRONG_CREDENTIAL") from None


class _File(Generic[T]):
    """A parsed file, read again when it was written."""

    def __init__(self, path: Path, parse: Callable[[bytes, Path], T]) -> None:
        self._path = path
        self._parse = parse
        self._seen: tuple[int, int] | None = None
        self._value: T | None = None
        self._told = ""

    def current(self) -> T:
        """As `read`, for a caller, who is told no more than that it is not the caller's fault."""
        try:
            found = self.read()
        except (InvalidArgument, FailedPrecondition) as error:
            if str(error) != self._told:
                self._told = str(error)
                _log.error("nobody is let in by %s: %s", self._path, error)
            raise Unavailable(
                "credentials cannot be checked now: their file cannot be read; the gateway's log says why",
                reason="NO_CREDENTIALS_FILE",
            ) from None
        self._told = ""
        return found

    def read(self) -> T:
        """What the file says now; FailedPrecondition when it cannot be read, and then nobody is let in by it."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size)
            if seen != self._seen or self._value is None:
                self._value, self._seen = self._parse(self._path.read_bytes(), self._path), seen
            return self._value
        except OSError as error:
            raise FailedPrecondition(
                f"credentials cannot be read: {self._path.name}: {error.strerror}", reason="NO_CREDENTIALS_FILE"
            ) from None


def _keys(raw: bytes, path: Path) -> Mapping[str, Caller]:
    try:
        document = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise _bad(path, f"is not YAML: {error}") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise _bad(path, "has no list `keys`")
    found: dict[str, Caller] = {}
    for index, entry in enumerate(entries):
        where = f"keys[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _bad(path, f"{where} has no name")
        digest = entry.get("sha256")
        if not isinstance(digest, str) or len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef"):
            raise _bad(path, f"{where}.sha256 is not the SHA-256 of a key, in hexadecimal")
        unknown = sorted(set(entry) - {"name", "sha256", "scopes", "models", "namespaces", "rate"})
        if unknown:
            raise _bad(path, f"{where}.{unknown[0]} is not known")
        found[digest.lower()] = callers.parse(entry["name"], entry, where)
    return found


def _jwks(raw: bytes, path: Path) -> Mapping[str, tuple[str, Any]]:
    try:
        entries = orjson.loads(raw)["keys"]
        found: dict[str, tuple[str, Any]] = {}
        for entry in entries:
            algorithm = ALGORITHMS.get(entry.get("kty", ""))
            if algorithm is None or entry.get("alg", algorithm) != algorithm:
                raise _bad(path, f"a key of type {entry.get('kty')!r} and algorithm {entry.get('alg')!r} is not taken")
            found[str(entry.get("kid", ""))] = (algorithm, jwt.PyJWK(entry, algorithm).key)
        return found
    except MeshError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise _bad(path, f"is not a JWKS: {error}") from None


def _bad(path: Path, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path.name} {why}", reason="BAD_CREDENTIALS", violations=[Violation(path.name, why)]
    )
