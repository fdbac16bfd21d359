"""Processes of served models: demand, capacity, limits, holding back, and measurements against the forecast."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recmesh.pb import brain_pb2 as pb
from recmesh.plugins.planning import Floats, Resources
from recmesh.runtime.errors import InvalidArgument, MeshError, Unavailable
from services.brain import wire
from services.brain.app.book import Book
from services.brain.app.lending import Lending
from services.brain.app.serving import Serving
from services.brain.domain.loans.planning import Rules as LoanRules
from services.brain.domain.loans.pool import Pool, outlook
from services.brain.domain.serving import (
    Coming,
    Decision,
    Kind,
    Look,
    Reason,
    Rules,
    Service,
    ServingAsk,
    decide,
    needed,
)
from services.brain.store import SqlStore

RULES = Rules(target=0.5, quantile=0.9, hold_s=60.0)
HN = Kind("hn", 2, 1, 4, busy=0.4, answered_per_s=80.0, start_s=20.0)
"""S is 10 ms: one bears 50/s at the target."""
S = 0.01


def flat(rate: float, *, then: float | None = None, at: int = 3) -> Coming:
    """A forecast in steps of 10 s; from step `at` on another rate."""
    return Coming([rate if then is None or step < at else then for step in range(12)], 10.0, "mean")


def decision(
    kind: Kind, arrivals: float, coming: Coming, *, held: Sequence[int] = (), service_s: float | None = S
) -> Decision:
    """With `held`: what would have been enough in the looks before, the first a hold ago."""
    need = needed(kind, service_s, arrivals, coming, RULES)
    looks = [(40.0 + 5.0 * index, count) for index, count in enumerate(held)] + [(100.0, need.to_shrink)]
    return decide(kind, need, looks, now=100.0, rules=RULES)


def test_what_a_request_takes_follows_the_utilisation_law_and_forgets() -> None:
    service = Service()
    assert service.seconds is None
    service.saw(HN, 10.0)
    assert service.seconds == pytest.approx(0.4 * 2 / 80.0)
    for _ in range(400):
        service.saw(replace(HN, busy=0.2), 10.0)
    assert service.seconds == pytest.approx(0.005, rel=0.01)
    few = Service()
    few.saw(replace(HN, answered_per_s=1.0), 10.0)
    assert few.seconds is None, "ten requests tell too little"


def test_processes_are_there_before_the_forecast_rate_is() -> None:
    """140/s need three; they are forecast within the 20 s that a start takes and a step."""
    soon = decision(HN, 80.0, flat(80.0, then=140.0, at=2))
    assert (soon.replicas, soon.reason) == (3, Reason.FORECAST)
    assert soon.demand_per_s == 140.0 and soon.capacity_per_s == pytest.approx(50.0)
    late = decision(HN, 80.0, flat(80.0, then=140.0, at=4))
    assert late.replicas == 2, "there is time to start it later"


def test_processes_that_start_one_after_another_are_begun_for_as_many_starts_earlier() -> None:
    """190/s need four, two more; a start takes 20 s."""
    soon = decision(HN, 80.0, flat(80.0, then=190.0, at=4))
    assert (soon.replicas, soon.reason) == (4, Reason.FORECAST)
    assert decision(HN, 80.0, flat(80.0, then=190.0, at=5)).replicas == 2, "there is time for both"
    bounded = decision(replace(HN, most=3), 80.0, flat(80.0, then=190.0, at=4))
    assert bounded.replicas == 2, "of two more it may have one alone"
    assert decision(replace(HN, replicas=4), 80.0, flat(80.0, then=190.0, at=2)).replicas == 4


def test_around_the_target_nothing_changes() -> None:
    for rate in (91.0, 109.0):
        assert decision(HN, rate, flat(rate), held=[1, 1]).replicas == 2
    assert decision(HN, 111.0, flat(111.0)).replicas == 3
    assert decision(HN, 40.0, flat(40.0), held=[1, 1]).replicas == 1


def test_fewer_must_have_been_enough_for_the_whole_hold() -> None:
    assert decision(HN, 10.0, flat(10.0)).reason is Reason.HELD, "nothing is known of the time before"
    assert decision(HN, 10.0, flat(10.0), held=[1, 2, 1]).replicas == 2, "two were needed meanwhile"
    assert decision(HN, 10.0, flat(10.0), held=[1, 1, 1]).replicas == 1
    rises = decision(HN, 10.0, flat(10.0, then=90.0, at=7), held=[1, 1, 1])
    assert rises.replicas == 2, "it would have to be started again within the hold"


def test_more_than_was_forecast_is_planned_with_as_it_comes() -> None:
    found = decision(HN, 140.0, flat(80.0))
    assert (found.replicas, found.reason) == (3, Reason.MEASURED)
    assert "140.0/s come where 80.0 were forecast" in found.why
    without = decision(HN, 140.0, Coming((), 10.0, "forecaster does not run"))
    assert (without.replicas, without.reason) == (3, Reason.MEASURED)
    assert "forecaster does not run" in without.why


def test_measured_saturation_goes_before_what_is_forecast() -> None:
    busy = replace(HN, busy=0.97, answered_per_s=80.0)
    found = decision(busy, 80.0, flat(80.0))
    assert (found.replicas, found.reason) == (4, Reason.SATURATED) and "97%" in found.why
    waits = decision(replace(HN, waiting=300.0), 80.0, flat(80.0))
    assert (waits.replicas, waits.reason) == (3, Reason.SATURATED) and "wait" in waits.why
    unknown = decision(replace(HN, busy=0.95, replicas=1), 5.0, flat(5.0), service_s=None)
    assert unknown.replicas == 2, "even where no request was answered yet"


def test_limits_hold_and_are_told() -> None:
    most = decision(HN, 900.0, flat(900.0))
    assert (most.replicas, most.reason) == (4, Reason.LIMIT) and "17 are needed" in most.why
    assert decision(replace(HN, least=2), 1.0, flat(1.0), held=[1, 1]).replicas == 2
    raised = decision(replace(HN, replicas=1, least=2), 1.0, flat(1.0))
    assert (raised.replicas, raised.reason) == (2, Reason.LIMIT), "the settings were changed"


def test_without_measurements_the_number_stays() -> None:
    found = decision(HN, 500.0, flat(500.0), service_s=None)
    assert (found.replicas, found.reason) == (2, Reason.UNKNOWN)


class Forecaster:
    """Says what it was told to, or why not."""

    def __init__(self, high: float, error: MeshError | None = None) -> None:
        self.high, self.error = high, error
        self.asked: list[tuple[str, int, float, float]] = []

    async def forecast(
        self, series: str, *, steps: int, step_s: float, now: float, level: float
    ) -> tuple[Floats, Floats, str]:
        self.asked.append((series, steps, step_s, level))
        if self.error is not None:
            raise self.error
        return np.full(steps, self.high / 2), np.full(steps, self.high), "day-naive"

    async def history(self, series: str, *, since: float, step_s: float) -> Sequence[tuple[float, float]]:
        return []


class Clock:
    """Stands still until it is told."""

    time = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, delay_s: float) -> None:
        self.time += delay_s


def ask(**more: object) -> ServingAsk:
    made = ServingAsk("ctr", "model/ctr", 10.0, 80.0, 10.0, [Kind("cn", 1, 1, 2, 0.1, 80.0), HN], RULES, "gw-1")
    return replace(made, **more)    # type: ignore[arg-type]  # of fields by name


@pytest.mark.asyncio
async def test_kinds_are_decided_apart_and_past_looks_are_kept_for_each_gateway() -> None:
    forecaster, clock = Forecaster(200.0), Clock()
    app = Serving(forecaster, clock=clock)
    look = await app.plan(ask())
    assert [(each.kind, each.replicas) for each in look.chosen] == [("cn", 1), ("hn", 4)]
    series, steps, step_s, level = forecaster.asked[0]
    assert (series, steps, step_s) == ("model/ctr", 8, 10.0) and level == pytest.approx(0.8)
    assert list(app.looks) == [look]
    clock.time += 1.0
    await app.plan(ask(window_s=1.0))
    assert list(app.looks) == [look], "the same is under way"
    forecaster.high = 10.0
    for _ in range(8):
        clock.time += 10.0
        look = await app.plan(ask(arrivals_per_s=10.0))
    assert look.chosen[1].replicas == 1, "80 s of little demand"
    other: Look = await app.plan(ask(arrivals_per_s=10.0, asker="gw-2"))
    assert other.chosen[1].reason is Reason.HELD, "another gateway's processes have no past yet"


@pytest.mark.asyncio
async def test_of_a_forecast_only_the_share_counts_that_these_processes_get() -> None:
    app = Serving(Forecaster(200.0), clock=Clock())
    here = await app.plan(ask(arrivals_per_s=40.0, elsewhere=0.5))
    assert (here.chosen[1].replicas, here.chosen[1].demand_per_s) == (2, 100.0)
    none = await app.plan(ask(arrivals_per_s=0.0, elsewhere=1.0, asker="gw-1 other"))
    assert none.chosen[1].demand_per_s == 0.0


@pytest.mark.asyncio
async def test_what_is_told_of_processes_of_one_model_is_apart() -> None:
    app = Serving(Forecaster(200.0), clock=Clock())
    for _ in range(3):
        for asker, most in (("gw-1 whole", 4), ("gw-1 split", 3)):
            await app.plan(ask(asker=asker, kinds=[replace(HN, most=most)]))
    assert [look.chosen[0].replicas for look in app.looks] == [4, 3]


@pytest.mark.asyncio
async def test_a_forecaster_that_is_away_leaves_what_comes() -> None:
    app = Serving(Forecaster(0.0, Unavailable("forecaster does not run")), clock=Clock())
    look = await app.plan(ask(arrivals_per_s=140.0))
    assert (look.chosen[1].replicas, look.chosen[1].reason) == (3, Reason.MEASURED)


@pytest.mark.asyncio
async def test_it_is_looked_as_far_ahead_as_all_starts_take_one_after_another() -> None:
    forecaster = Forecaster(200.0)
    await Serving(forecaster, clock=Clock()).plan(ask(kinds=[replace(HN, most=12)]))
    assert forecaster.asked[0][1] == 21, "ten starts of 20 s, and a step"


@pytest.mark.asyncio
async def test_a_wrong_ask_is_refused_by_field() -> None:
    app = Serving(Forecaster(1.0), clock=Clock())
    wrong = ask(step_s=0.0, model="", kinds=[replace(HN, busy=2.0), Kind("cn", 1, 3, 2)])
    with pytest.raises(InvalidArgument) as refused:
        await app.plan(wrong)
    assert {each.path for each in refused.value.violations} == {"step_s", "model", "kinds.hn", "kinds.cn"}


def test_the_wire_keeps_every_field() -> None:
    message = pb.PlanServingRequest(
        model="ctr", asker="gw-1", series="model/ctr", step_s=10.0, arrivals_per_s=80.0, window_s=10.0,
        kinds=[
            pb.ServingKind(name="cn", replicas=1, min=1, max=2, busy=0.1, answered_per_s=80.0),
            pb.ServingKind(name="hn", replicas=2, min=1, max=4, busy=0.4, answered_per_s=80.0, start_s=20.0),
        ],
        target_utilisation=0.5, quantile=0.9, hold_s=60.0, elsewhere=0.25, pods=True,
    )  # fmt: skip
    assert wire.serving_ask(message) == ask(elsewhere=0.25, pods=True)
    found = decision(HN, 140.0, flat(80.0))
    [told] = wire.serving_reply(Look(1.0, "ctr", 140.0, [HN], [found], False)).decisions
    assert (told.kind, told.replicas, told.reason, told.explanation) == ("hn", 3, "MEASURED", found.why)
    assert (told.demand_per_s, told.capacity_per_s) == (140.0, pytest.approx(50.0))


@pytest.mark.asyncio
async def test_what_loans_are_planned_by_is_what_the_forecast_needs_of_hns(tmp_path: Path) -> None:
    clock, store = Clock(), SqlStore(f"sqlite:///{tmp_path}/brain.sqlite")
    store.open()
    pool = Pool(LoanRules(own=2, most=4), Resources(cpu=1.0))
    lending = Lending(store, pool, Book(clock=clock), clock=clock, told=lambda loan, now: None)
    app = Serving(Forecaster(200.0), lending, clock=clock)
    [unknown] = (await app.plan(ask(kinds=[replace(HN, answered_per_s=0.0, busy=0.0)]))).chosen
    assert unknown.reason is Reason.UNKNOWN and not outlook(lending._fresh().values()).is_known
    [bounded] = (await app.plan(ask(kinds=[HN]))).chosen
    assert (bounded.replicas, bounded.reason) == (2, Reason.ROOM)
    seen = outlook(lending._fresh().values())
    assert seen.is_known and max(seen.needs) == 4 and len(seen.needs) * seen.step_s >= lending.horizon_s
    dry = (await app.plan(ask(kinds=[HN], dry_run=True))).chosen
    assert dry[0].replicas == 4, "a dry run takes no room, and is bounded by none"


@pytest.mark.asyncio
async def test_hns_that_do_not_keep_up_are_needed_though_little_comes_and_the_model_may_have_no_more(
    tmp_path: Path,
) -> None:
    clock, store = Clock(), SqlStore(f"sqlite:///{tmp_path}/brain.sqlite")
    store.open()
    pool = Pool(LoanRules(own=1, most=3), Resources(cpu=1.0))
    lending = Lending(store, pool, Book(clock=clock), clock=clock, told=lambda loan, now: None)
    app = Serving(Forecaster(10.0), lending, clock=clock)
    await app.plan(ask(kinds=[replace(HN, replicas=4, busy=1.0, waiting=900.0)], arrivals_per_s=10.0))
    assert outlook(lending._fresh().values()).measured == 4, "a peak is over when what has come in it is answered"


@pytest.mark.asyncio
async def test_a_model_that_nobody_asks_keeps_no_room(tmp_path: Path) -> None:
    clock, store = Clock(), SqlStore(f"sqlite:///{tmp_path}/brain.sqlite")
    store.open()
    pool = Pool(LoanRules(own=2, most=4), Resources(cpu=1.0))
    lending = Lending(store, pool, Book(clock=clock), clock=clock, told=lambda loan, now: None)
    app = Serving(Forecaster(0.0), lending, clock=clock)
    await app.plan(ask(kinds=[replace(HN, answered_per_s=0.0, busy=0.0)], arrivals_per_s=0.0))
    seen = outlook(lending._fresh().values())
    assert seen.is_known and set(seen.needs) == {1} and seen.measured == 1
