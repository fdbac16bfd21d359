"""What a worker's heartbeats say about its work: times per stage, loss and AUC over the last window."""

import threading
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import psutil

from recmesh.trainer.metrics import StreamingAuc
from recmesh.trainer.ports import Beat, StepTimes
from recmesh.trainer.session import Floats


@dataclass
class _Window:
    since: float
    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    steps: int = 0
    samples: int = 0
    loss_sum: float = 0.0


MOST_LABELS = 8
"""Whose predictions are counted, in the order of the data's labels."""


class Meter:
    """Thread-safe sums; `beat` closes a window."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = psutil.Process()
        self._window = _Window(perf_counter())
        self._aucs: list[StreamingAuc] = []
        """By label."""
        self._occupied_s = 0.0
        self._occupied_since: float | None = None
        self._samples = 0
        self._skipped = 0
        self._busy_s = 0.0

    def trained(self, *, samples: int, loss: float, labels: Floats, predictions: Floats | None) -> None:
        """A batch was computed; predictions are probabilities of its labels, as they were before it was trained."""
        with self._lock:
            self._samples += samples
            self._window.samples += samples
            self._window.loss_sum += loss * samples
            if predictions is not None and predictions.size >= samples:
                self._score(labels.reshape(samples, -1), predictions.reshape(samples, -1))

    def _score(self, labels: Floats, predictions: Floats) -> None:
        """Of predictions that are no probabilities there is no AUC."""
        count = min(labels.shape[1], predictions.shape[1], MOST_LABELS)
        self._aucs += [StreamingAuc() for _ in range(count - len(self._aucs))]
        for label in range(count):
            scores = predictions[:, label]
            if ((scores >= 0) & (scores <= 1)).all():
                self._aucs[label].add(labels[:, label], scores)

    def occupied(self, is_occupied: bool) -> None:
        """Whether the worker has something to train, from now on."""
        with self._lock:
            now, since = perf_counter(), self._occupied_since
            self._occupied_s += now - since if since is not None else 0.0
            self._occupied_since = now if is_occupied else None

    def skipped(self, samples: int) -> None:
        """A batch's numbers were not finite."""
        with self._lock:
            self._skipped += 1
            self._samples += samples

    def times(
        self, *, data_s: float = 0.0, pull_s: float = 0.0, compute_s: float = 0.0, push_s: float = 0.0
    ) -> None:
        """Stages of one batch, whichever are known now; compute ends a step."""
        with self._lock:
            window = self._window
            window.data_s += data_s
            window.pull_s += pull_s
            window.compute_s += compute_s
            window.push_s += push_s
            window.steps += compute_s > 0.0
            self._busy_s += compute_s

    @property
    def samples(self) -> int:
        """Trained since the process start."""
        return self._samples

    def beat(self, gen: int, *, note: str = "", draining: bool = False, bad_records: int = 0) -> Beat:
        """The window since the last beat, and totals since the process start."""
        cpu = self._process.cpu_times()
        with self._lock:
            window, self._window = self._window, _Window(perf_counter())
            auc = self._aucs[0].value() if self._aucs else np.nan
            scores = tuple(each.counts() for each in self._aucs)
            for each in self._aucs:
                each.clear()
            running_s = perf_counter() - self._occupied_since if self._occupied_since is not None else 0.0
            n = max(window.steps, 1)
            return Beat(
                gen=gen,
                samples=self._samples,
                step=StepTimes(
                    data_s=window.data_s / n,
                    pull_s=window.pull_s / n,
                    compute_s=window.compute_s / n,
                    push_s=window.push_s / n,
                    total_s=(perf_counter() - window.since) / n if window.steps else 0.0,
                    steps=window.steps,
                ),
                loss=window.loss_sum / max(window.samples, 1),
                auc=0.0 if np.isnan(auc) else auc,
                window_samples=window.samples,
                memory_bytes=self._process.memory_info().rss,
                cpu_s=cpu.user + cpu.system,
                busy_s=self._busy_s,
                skipped_nan=self._skipped,
                bad_records=bad_records,
                note=note,
                draining=draining,
                scores=scores,
                occupied_s=self._occupied_s + running_s,
            )
