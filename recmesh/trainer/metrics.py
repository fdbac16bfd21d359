"""AUC and log loss in plain numpy: exact over arrays, and streaming over a histogram."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]
_CLIP = 1e-7   # predictions are float32: nearer to 0 or 1 they are 0 or 1


def auc(labels: Values, scores: Values, weights: Values | None = None) -> float:
    """Area under the ROC curve: the chance that a positive outranks a negative, ties counting one half.

    Labels above 0.5 are positive. NaN when there is only one class.
    """
    positive = np.asarray(labels, np.float64).ravel() > 0.5
    weight = np.ones(positive.size) if weights is None else np.asarray(weights, np.float64).ravel()
    order = np.argsort(np.asarray(scores).ravel(), kind="stable")
    ordered = np.asarray(scores).ravel()[order]
    if not ordered.size:
        return float("nan")
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    positives = np.add.reduceat(np.where(positive, weight, 0.0)[order], starts)
    negatives = np.add.reduceat(np.where(positive, 0.0, weight)[order], starts)
    return _auc_of_groups(positives, negatives)


def logloss(labels: Values, probabilities: Values, weights: Values | None = None) -> float:
    """Mean negative log likelihood of 0/1 (or soft) labels, in nats."""
    target = np.asarray(labels, np.float64).ravel()
    p = np.clip(np.asarray(probabilities, np.float64).ravel(), _CLIP, 1.0 - _CLIP)
    losses = -(target * np.log(p) + (1.0 - target) * np.log1p(-p))
    if not losses.size:
        return float("nan")
    return float(np.average(losses, weights=None if weights is None else np.asarray(weights).ravel()))


def evaluation_metrics(
    names: Sequence[str],
    labels: Values,
    predictions: Values,
    weights: Values | None = None,
) -> dict[str, float]:
    """`eval_auc`, `eval_loss` (means over labels), with several labels `eval_auc.<label>`; `eval_rows`.

    Labels other than 0 and 1 are a regression: then `eval_mse` in place of both.
    """
    labels = np.asarray(labels).reshape(len(labels), -1)
    predictions = np.asarray(predictions).reshape(len(predictions), -1)
    metrics: dict[str, float] = {"eval_rows": float(len(labels))}
    if ((labels < 0.0) | (labels > 1.0)).any():
        errors = ((labels.astype(np.float64) - predictions) ** 2).mean(axis=1)
        return metrics | {"eval_mse": float(np.average(errors, weights=weights))}
    each_auc = [auc(labels[:, k], predictions[:, k], weights) for k in range(labels.shape[1])]
    each_loss = [logloss(labels[:, k], predictions[:, k], weights) for k in range(labels.shape[1])]
    metrics |= {"eval_auc": float(np.mean(each_auc)), "eval_loss": float(np.mean(each_loss))}
    if len(names) > 1:
        metrics |= {f"eval_auc.{name}": value for name, value in zip(names, each_auc, strict=True)}
        metrics |= {f"eval_loss.{name}": value for name, value in zip(names, each_loss, strict=True)}
    return metrics


COARSE = 1024
"""Bins of what heartbeats carry: 0.03 of log-odds each."""


@dataclass(frozen=True, slots=True)
class ScoreCounts:
    """How often each bin of predictions came true and not, ascending: of several workers they add up to one AUC."""

    bins: tuple[int, ...] = ()
    positives: tuple[int, ...] = ()
    negatives: tuple[int, ...] = ()


class StreamingAuc:
    """AUC over a histogram of log-odds: constant memory, exact but for pairs within one of 4,096 bins.

    Bins are even in log-odds, since click probabilities crowd near zero.
    """

    BINS = 4096
    LIMIT = 16.2   # beyond the log-odds of _CLIP

    def __init__(self) -> None:
        self._counts = np.zeros((2, self.BINS), np.int64)

    def add(self, labels: Values, probabilities: Values) -> None:
        """Counts a batch; labels above 0.5 are positive."""
        p = np.clip(probabilities.astype(np.float64, copy=False), _CLIP, 1.0 - _CLIP)
        place = (np.log(p / (1.0 - p)) + self.LIMIT) * (self.BINS / (2 * self.LIMIT))
        bins = place.astype(np.int64)
        positive = labels > 0.5
        self._counts[1] += np.bincount(bins[positive], minlength=self.BINS)
        self._counts[0] += np.bincount(bins[~positive], minlength=self.BINS)

    def counts(self) -> "ScoreCounts":
        """What was seen, on `COARSE` bins, those without any left out."""
        coarse = self._counts.reshape(2, COARSE, -1).sum(axis=2)
        bins = np.flatnonzero(coarse.any(axis=0))
        return ScoreCounts(tuple(bins.tolist()), tuple(coarse[1, bins].tolist()), tuple(coarse[0, bins].tolist()))

    def value(self) -> float:
        """NaN until both classes were seen."""
        return _auc_of_groups(self._counts[1].astype(np.float64), self._counts[0].astype(np.float64))

    def clear(self) -> None:
        """Begins a new window."""
        self._counts[:] = 0


def _auc_of_groups(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float:
    """Positives and negatives per distinct score, ascending by score."""
    total = positives.sum() * negatives.sum()
    if total <= 0:
        return float("nan")
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / total)
