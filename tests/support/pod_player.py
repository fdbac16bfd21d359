"""Role pods of simulated nodes, played by processes of this machine: kwok says that a pod runs, and something does."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recmesh.formats import inhand
from tests.support.kube import KubeCluster

ROLE = "recmesh.dev/role"


class PodPlayer:
    """Plays the pods of a namespace; the kubelet's part that simulated nodes leave out."""

    def __init__(self, cluster: KubeCluster, namespace: str, folder: Path) -> None:
        self._cluster, self._namespace, self._folder = cluster, namespace, folder
        self.plays = True
        """False: pods that come from now on are left without a process."""
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: set[str] = set()
        self._ends = False

    @contextmanager
    def playing(self) -> Iterator["PodPlayer"]:
        """Within the block."""
        thread = threading.Thread(target=self._follow, name="pod-player")
        thread.start()
        try:
            yield self
        finally:
            self._ends = True
            with suppress(AttributeError, ProcessLookupError):
                self._watch.kill()
            thread.join()
            with self._lock:
                for process in self._processes.values():
                    process.kill()

    def kill(self, pod: str) -> None:
        """SIGKILL to the process of a pod, as the kernel's."""
        with self._lock:
            self._processes[pod].kill()

    def _follow(self) -> None:
        """A watch that breaks off (the API server is away) is begun anew: it lists what there is."""
        while not self._ends:
            self._watch = self._cluster.follow(
                "get", "pods", "-n", self._namespace, "--output-watch-events", "-o", "json"
            )
            with self._watch:
                for event in _events(self._watch):
                    self._take(event["type"], event["object"])

    def _take(self, kind: str, pod: dict[str, Any]) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        process = self._processes.get(name)
        if kind == "DELETED":
            if process is not None:
                process.kill()
        elif "deletionTimestamp" in pod["metadata"]:
            if process is not None:
                process.send_signal(signal.SIGTERM)
        elif pod["status"].get("phase") == "Running" and uid not in self._seen and ROLE in pod["metadata"]["labels"]:
            self._seen.add(uid)
            if self.plays:
                self._start(name, pod)

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        place = self._folder / name
        place.mkdir(parents=True, exist_ok=True)
        given = {item["name"]: item.get("value", "") for item in pod["spec"]["containers"][0]["env"]}
        env = {key: text.replace("$(RECMESH_POD_IP)", "127.0.0.1").replace("$$", "$") for key, text in given.items()}
        env |= {"RECMESH_POD_IP": "127.0.0.1", "HOME": str(place), "RECMESH_WORK_DIR": str(place)}
        env |= {"RECMESH_SHM_DIR": str(place), inhand.VARIABLE: str(place / "note"), "PATH": os.environ["PATH"]}
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "recmesh.trainer"], env=env, cwd=place, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )
        with self._lock:
            self._processes[name] = process
        threading.Thread(target=self._tell_end, args=(name, process), daemon=True).start()

    def _tell_end(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if self._ends:
            return
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Completed" if code == 0 else "Error"}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [
            {"name": "role", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
             "state": {"terminated": ended}}]}  # fmt: skip
        with suppress(AssertionError):      # it is not there any more
            self._cluster.kubectl("patch", "pod", name, "-n", self._namespace, "--subresource=status", "--type=merge",
                                  "-p", json.dumps({"status": status}))  # fmt: skip


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """kubectl writes one object behind another."""
    decoder, text = json.JSONDecoder(), ""
    assert process.stdout is not None
    while part := process.stdout.readline():
        text += part
        with suppress(json.JSONDecodeError):        # it is not whole yet
            event, _ = decoder.raw_decode(text)
            text = ""
            yield event
