"""A way into a cluster: `kubectl port-forward` to gateway's Service, for as long as a client lives.

kubectl knows how to speak to every cluster (certificates, tokens, plug-ins of clouds), and what its user may do there.
"""

import os
import re
import select
import subprocess
import time
import weakref

from recmesh.client.contexts import Context
from recmesh.runtime.errors import FailedPrecondition, Unavailable

SERVICE = "gateway"
PORT = 8000
"""Of the Service, for HTTP (infra/base/services/gateway.yaml)."""
_SAID = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ")
_LAST_WORDS_S = 2.0


class Forward:
    """One local port that leads to gateway. Not thread-safe."""

    def __init__(self, place: Context, *, timeout_s: float = 30.0) -> None:
        """Returns when it is open. FailedPrecondition without kubectl, Unavailable with what kubectl says."""
        self._place = place
        self._timeout_s = timeout_s
        self._port = 0
        self._open()

    @property
    def url(self) -> str:
        """Of gateway, through it."""
        return f"{'https' if self._place.ca_file else 'http'}://127.0.0.1:{self._port}"

    @property
    def server_name(self) -> str:
        """What a certificate of gateway is issued for; empty without TLS."""
        return f"{SERVICE}.{self._place.namespace}.svc" if self._place.ca_file else ""

    def mend(self) -> None:
        """Opens it again on the same port if it broke, as it does when gateway's pod is replaced. What cannot be mended
        now is not told: the next call through it says that nobody answers."""
        if self._process.poll() is not None:
            try:
                self._open()
            except Unavailable:
                return

    def close(self) -> None:
        """Ends it."""
        self._end()

    def _open(self) -> None:
        place = self._place
        which = ["--context", place.kube_context] if place.kube_context else []
        command = [
            "kubectl", *which, "--namespace", place.namespace, "port-forward", "--address", "127.0.0.1",
            f"service/{SERVICE}", f"{self._port or ''}:{PORT}",
        ]  # fmt: skip
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,          # Ctrl-C is for us; it ends with the client
            )
        except OSError as error:
            message = f"{place.where} is spoken to through kubectl, which cannot be run ({error.strerror}): install it"
            raise FailedPrecondition(message, reason="PACKAGE_MISSING") from error
        self._process = process
        self._end = weakref.finalize(self, _ended, process)
        self._port = self._told(process)

    def _told(self, process: "subprocess.Popen[bytes]") -> int:
        """The port, once kubectl listens."""
        assert process.stdout is not None and process.stderr is not None
        deadline, said = time.monotonic() + self._timeout_s, b""
        while (left_s := deadline - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left_s)[0]:
                break
            part = os.read(process.stdout.fileno(), 4096)
            said += part
            if found := _SAID.search(said):
                return int(found[1])
            if not part:
                break
        process.terminate()
        try:
            _, told = process.communicate(timeout=_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, told = process.communicate()
        words = told.decode(errors="replace").strip().splitlines()
        why = words[-1] if words else f"kubectl said nothing for {self._timeout_s:g} s"
        raise Unavailable(f"{self._place.where} cannot be reached: {why}")


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
