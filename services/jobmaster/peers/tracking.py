"""The process that hands metrics to TensorBoard and MLflow (`recmesh.tracking`): started when a job asks for it."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec

import orjson

from recmesh.runtime.errors import Violation
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import TrainingJob
from recmesh.tracking import LIBRARIES, Kind, Report

ANSWER_S, FIRST_ANSWER_S = 30.0, 120.0
"""Longer than what a tracking server is given for a call; then the process is ended, and a later report is told to a
new one. The first answer comes after imports, and after a new store was made."""
logger = get_logger(__name__)


def wanted(spec: TrainingJob) -> tuple[Kind, ...]:
    """The sinks that a job asks for."""
    asked = spec.tracking
    return () if asked is None else tuple(kind for kind in LIBRARIES if getattr(asked, kind))


class Tracker:
    """One process for all jobs; one report at a time."""

    def __init__(self, *, tensorboard: str, mlflow: str, command: Sequence[str] = (sys.executable, "-m")) -> None:
        """The folder of event files, and the URI of MLflow; empty: not to be had."""
        self._targets: dict[Kind, str] = {"tensorboard": tensorboard, "mlflow": mlflow}
        self._command = tuple(command)
        self._process: asyncio.subprocess.Process | None = None

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        """Silently no metrics would look like a job that learns nothing."""
        found = []
        for kind in wanted(spec):
            module, extra = LIBRARIES[kind]
            if not self._targets[kind]:
                found.append(Violation(f"tracking.{kind}", f"jobmaster has no RECMESH_{kind.upper()}_URI"))
            elif find_spec(module) is None:
                found.append(Violation(f"tracking.{kind}", f"needs {module}, which jobmaster lacks: install {extra}"))
        return found

    async def tell(self, report: Report) -> dict[str, str]:
        """By sink: why it has not taken the report. All of them where the process ended or did not answer in time."""
        try:
            is_new = self._process is None or self._process.returncode is not None
            async with asyncio.timeout(FIRST_ANSWER_S if is_new else ANSWER_S):
                process = await self._running()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(orjson.dumps(asdict(report)) + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            await self.stop()
            return dict.fromkeys(report.sinks, "the process of tracking does not answer")
        except OSError as error:
            await self.stop()
            return dict.fromkeys(report.sinks, f"the process of tracking: {error}")
        except asyncio.CancelledError:
            await self.stop()       # an answer may be on its way, which is not the next report's
            raise
        if not line:
            await self.stop()
            return dict.fromkeys(report.sinks, "the process of tracking ended; its words are in jobmaster's log")
        errors: dict[str, str] = orjson.loads(line)["errors"]
        return errors

    async def start(self) -> None:
        """Nothing runs before a job asks for it."""

    async def stop(self) -> None:
        """The process writes what it holds, and ends; within seconds."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    name = "tracking process"

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            arguments = [f"--{kind}={target}" for kind, target in self._targets.items() if target and _has(kind)]
            self._process = await asyncio.create_subprocess_exec(
                *self._command, "recmesh.tracking", *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )
            logger.info("metrics go out by process %d", self._process.pid)
        return self._process


def _has(kind: Kind) -> bool:
    return find_spec(LIBRARIES[kind][0]) is not None
