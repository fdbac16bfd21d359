"""Requests to the addresses that webhooks name."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Collection, Mapping, Sequence
from email.utils import parsedate_to_datetime
from ipaddress import ip_address

import httpx

from recmesh.runtime.errors import MeshError, PermissionDenied
from services.gateway.domain import addresses
from services.gateway.domain.addresses import Network
from services.gateway.domain.webhooks import Answer, check_url

ATTEMPT_S = 15.0
RESOLVE_S = 5.0
KEPT_BYTES = 1024
"""Of an answer; what follows is not read."""
AT_ONCE = 64
"""Requests of all webhooks together."""
AGENT = "recmesh-webhooks/1"


class Poster:
    """Sends requests. Names are resolved here and the connection goes to the address that was looked at, so that a name
    cannot be one thing when it is checked and another when it is called. Redirects are not followed."""

    def __init__(
        self, *, allowed: Sequence[Network], tls: ssl.SSLContext, attempt_s: float = ATTEMPT_S, at_once: int = AT_ONCE
    ) -> None:
        self._allowed = tuple(allowed)
        self._tls = tls
        self._attempt_s = attempt_s
        self._room = asyncio.Semaphore(at_once)
        self._clients: dict[str, httpx.AsyncClient] = {}
        """By URL: a connection that was made, and checked, for one name is used for no other."""

    async def check(self, url: str) -> str:
        """The address that a URL leads to now; PermissionDenied, or InvalidArgument when there is none."""
        host, port, secure = check_url(url)
        try:
            httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError) as error:       # such as a host that is no name by IDNA
            raise addresses.wrong_url(f"cannot be read: {error}") from None
        return addresses.check(host, await self._resolved(host, port), allowed=self._allowed, secure=secure)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One attempt. What goes wrong is an answer, too."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(2 * self._attempt_s), self._room, asyncio.timeout(self._attempt_s):
                address = await self.check(url)
                return await self._post(url, address, headers, body, began)
        except TimeoutError:
            return Answer(error=f"no answer within {self._attempt_s:g} s", seconds=time.monotonic() - began)
        except PermissionDenied as error:
            return Answer(error=error.message, seconds=time.monotonic() - began)
        except MeshError as error:
            why = "; ".join(each.reason for each in error.violations) or error.message
            return Answer(error=why, seconds=time.monotonic() - began)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return Answer(error=f"{type(error).__name__}: {error}", seconds=time.monotonic() - began)

    async def keep(self, urls: Collection[str]) -> None:
        """Close what was connected for others."""
        for url in [url for url in self._clients if url not in urls]:
            await self._clients.pop(url).aclose()

    async def close(self) -> None:
        """Close all."""
        await self.keep(())

    async def _post(
        self, url: str, address: str, headers: Mapping[str, str], body: bytes, began: float
    ) -> Answer:
        parts = httpx.URL(url)
        pinned = parts.copy_with(host=address)
        host = parts.netloc.decode("ascii")
        request = self._client(url).build_request(
            "POST", pinned, headers={"User-Agent": AGENT, **headers, "Host": host}, content=body,
            extensions={"sni_hostname": parts.raw_host.decode("ascii")},
        )
        response = await self._client(url).send(request, stream=True)
        try:
            kept = b""
            async for piece in response.aiter_raw():
                kept += piece
                if len(kept) >= KEPT_BYTES:
                    break
        finally:
            await response.aclose()
        return Answer(
            response.status_code, kept[:KEPT_BYTES].decode("utf-8", "replace"), time.monotonic() - began,
            retry_after_s(response.headers.get("retry-after", ""), time.time()),
        )

    def _client(self, url: str) -> httpx.AsyncClient:
        if url not in self._clients:
            self._clients[url] = httpx.AsyncClient(
                verify=self._tls, trust_env=False, follow_redirects=False, timeout=self._attempt_s,
                limits=httpx.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=30.0),
            )
        return self._clients[url]

    async def _resolved(self, host: str, port: int) -> list[str]:
        with contextlib.suppress(ValueError):
            return [str(ip_address(host.partition("%")[0]))]
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (TimeoutError, OSError, UnicodeError) as error:
            raise addresses.wrong_url(f"names a host that cannot be found: {host}: {error or 'no answer'}") from None
        return list(dict.fromkeys(str(each[4][0]) for each in found))


def retry_after_s(text: str, now: float) -> float:
    """Seconds that `Retry-After` asks for, which is a number or a date; 0 for anything else."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now) if text else 0.0
    except ValueError:
        return 0.0


def trust(ca_file: str) -> ssl.SSLContext:
    """Certificates (PEM) that receivers' are checked with; empty: the system's."""
    return ssl.create_default_context(cafile=ca_file or None)
