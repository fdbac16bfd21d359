"""AUC and log loss against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.trainer.metrics import StreamingAuc, auc, evaluation_metrics, logloss


def pairs_auc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> float:
    wins = total = 0.0
    for i in np.flatnonzero(labels > 0.5):
        for j in np.flatnonzero(labels <= 0.5):
            weight = weights[i] * weights[j]
            total += weight
            wins += weight * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    return wins / total if total else float("nan")


samples = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=30
)


@given(samples)
def test_auc_is_the_share_of_pairs_in_order_with_ties_as_half(rows: list[tuple[int, int, int]]) -> None:
    labels, scores, weights = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    assert auc(labels, scores, weights) == pytest.approx(pairs_auc(labels, scores, weights), nan_ok=True)


def test_auc_of_one_class_is_not_a_number() -> None:
    assert np.isnan(auc(np.ones(3), np.arange(3.0)))
    assert np.isnan(auc(np.empty(0), np.empty(0)))


def test_logloss_of_a_coin_is_ln_2() -> None:
    assert logloss(np.array([0.0, 1.0]), np.array([0.5, 0.5])) == pytest.approx(np.log(2))


def test_logloss_of_a_wrong_certainty_is_finite() -> None:
    assert np.isfinite(logloss(np.array([1.0]), np.array([0.0])))


def test_weights_count_in_logloss() -> None:
    doubled = logloss(np.array([1.0, 1.0, 0.0]), np.array([0.7, 0.7, 0.2]))
    assert logloss(np.array([1.0, 0.0]), np.array([0.7, 0.2]), np.array([2.0, 1.0])) == pytest.approx(doubled)


def test_streaming_auc_is_close_to_the_exact_one_even_for_rare_positives() -> None:
    random = np.random.default_rng(1)
    p = 1 / (1 + np.exp(-random.normal(-5, 1.5, 200_000)))
    labels = (random.random(p.size) < p).astype(np.float32)
    streaming = StreamingAuc()
    for part in range(0, p.size, 4096):
        streaming.add(labels[part:part + 4096], p[part:part + 4096].astype(np.float32))
    assert streaming.value() == pytest.approx(auc(labels, p), abs=2e-4)


def test_streaming_auc_takes_certain_predictions() -> None:
    streaming = StreamingAuc()
    streaming.add(np.array([0.0, 1.0], np.float32), np.array([0.0, 1.0], np.float32))
    assert streaming.value() == 1.0
    streaming.clear()
    assert np.isnan(streaming.value())


def test_several_labels_are_judged_each_and_on_average() -> None:
    labels = np.array([[0, 1], [1, 0], [1, 1], [0, 0]], np.float32)
    predictions = np.array([[0.1, 0.9], [0.8, 0.6], [0.7, 0.4], [0.2, 0.5]], np.float32)
    metrics = evaluation_metrics(["click", "buy"], labels, predictions)
    assert metrics["eval_auc.click"] == 1.0
    assert metrics["eval_auc"] == pytest.approx((1.0 + metrics["eval_auc.buy"]) / 2)
    assert metrics["eval_rows"] == 4


def test_targets_beyond_0_and_1_are_a_regression() -> None:
    metrics = evaluation_metrics(["y"], np.array([[3.0], [5.0]]), np.array([4.0, 5.0]))
    assert metrics["eval_mse"] == pytest.approx(0.5)
    assert "eval_auc" not in metrics
