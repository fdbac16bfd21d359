"""The fit, the front, and throughput over time, as plots."""

import math
from collections.abc import Sequence

from recmesh.client.explanations import Explanation, Fit, FitPoint, Look, RolePlan, ScheduleStep
from recmesh.explain import words
from recmesh.explain.tables import VERDICTS
from recmesh.runtime.ops import Tone
from recmesh.runtime.ops.plots import Axis, Dot, Dots, Moment, Plot, Scale

BAND = 1.96
"""Standard deviations on each side: 19 of 20 measurements should lie within."""
MOST_PROFILES = 150
"""More dots lie on each other."""


def plots(explanation: Explanation) -> list[Plot]:
    """All that fit the job, whatever is known: of an online job demand takes the place of the front."""
    look = explanation.look
    now = look.now if look else []
    fitted = look.fit if look else Fit(unknown="brain has not looked at it yet")
    weighed = demand_plot(look) if look and look.schedule else front_plot(explanation.weighed, look)
    return [fit_plot(fitted, now), weighed, throughput_plot(explanation)]


def demand_plot(look: Look) -> Plot:
    """What is forecast to come, and what the scheduled workers could train, in each step from the look on."""
    steps = look.schedule
    return Plot(
        "Demand, and what is scheduled for it",
        Axis("time, UTC", Scale.TIME),
        Axis("samples/s", from_zero=True),
        [
            Dots("expected", [
                Dot(each.at, each.expected, note=f"{words.rate(each.expected)} expected, {words.utc(each.at)}")
                for each in steps
            ], Tone.IDLE, is_joined=True),
            Dots("planned for", [
                Dot(each.at, each.demand, note=f"{words.rate(each.demand)} planned for, {words.utc(each.at)}")
                for each in steps
            ], Tone.WARN, is_joined=True),
            Dots("workers' capacity", [
                Dot(each.at, each.capacity, note=f"{each.workers} workers: {each.why}", label=_count(steps, place))
                for place, each in enumerate(steps)
            ], Tone.OK, is_joined=True),
        ],
        note=f"{look.planner}, {words.utc(look.at)} UTC: {look.reason}: {look.why}",
    )  # fmt: skip


def _count(steps: Sequence[ScheduleStep], place: int) -> str:
    """Where it changes."""
    count = steps[place].workers
    return str(count) if place == 0 or steps[place - 1].workers != count else ""


def fit_plot(fit: Fit, now: Sequence[RolePlan]) -> Plot:
    """Each measurement (across) and what is predicted there (up), on logarithmic axes; on the diagonal they agree."""
    has = {each.role: each.replicas for each in now}
    present = [each for each in fit.points if (each.workers, each.ps) == (has.get("worker"), has.get("ps"))]
    others = [each for each in fit.points if each not in present]
    return Plot(
        "Fit: measured and predicted",
        Axis("measured, samples/s", Scale.LOG),
        Axis("predicted, samples/s", Scale.LOG),
        [
            Dots("other configurations", [_fitted(each) for each in others]),
            Dots("what it has", [_fitted(each) for each in present], Tone.OK),
        ],
        has_diagonal=True,
        note=f"{fit.form}; wrong by {fit.error:.1%} on points that it had not seen" if fit.form else "",
        empty=fit.unknown or "nothing was measured yet",
    )


def _fitted(point: FitPoint) -> Dot:
    known = point.predicted > 0 and math.isfinite(point.log_sd) and 0 < point.log_sd < 100
    spread = math.exp(BAND * point.log_sd) if known else 1.0
    return Dot(
        point.measured, point.predicted,
        low=point.predicted / spread if known else None, high=point.predicted * spread if known else None,
        note=f"{words.configuration(point)}: {words.rate(point.measured)} measured, "
             f"{words.rate(point.predicted)} predicted, {words.utc(point.at)}",
    )  # fmt: skip


def front_plot(weighed: Look | None, newest: Look | None) -> Plot:
    """What more would bring against what it would cost, at the newest look with a choice; now is at 0, 0."""
    x, y = Axis("cost beside what it had"), Axis("gain, samples/s, less what the change costs")
    if weighed is None:
        return Plot("Front: cost and gain", x, y, [], empty=newest.why if newest else "nothing was weighed yet")
    points = sorted(weighed.front, key=lambda each: (each.cost, each.gain))
    dots = [
        Dot(
            each.cost, each.gain, is_chosen=each.is_chosen,
            label=words.configuration(each) if each.is_chosen else "",
            note=f"{words.configuration(each)}: {words.rate(each.samples_per_s) or 'unknown'} samples/s, {each.reason}"
                 + (f": {each.why}" if each.why else ""),
        )
        for each in points
    ]  # fmt: skip
    when = "at the last look" if weighed is newest else f"at the last look with a choice, {words.utc(weighed.at)} UTC"
    return Plot(
        "Front: cost and gain", x, y,
        [
            Dots("what it had", [Dot(0.0, 0.0, note=words.shape(weighed.now))], Tone.IDLE),
            Dots("candidates", dots, is_joined=True),
        ],
        note=f"{when}: {weighed.reason}: {weighed.why}",
        empty="no candidate can be drawn",
    )  # fmt: skip


def throughput_plot(explanation: Explanation) -> Plot:
    """Speed by profile, and a line where a change was decided, coloured by what came of it."""
    every = max(1, math.ceil(len(explanation.profiles) / MOST_PROFILES))
    profiles = explanation.profiles[::-1][::every][::-1]
    decided = {each.plan_id: each.at for each in explanation.decisions}
    moments = [
        Moment(
            decided.get(each.plan_id, each.at),
            f"{words.difference(each.before, each.after) or 'the same'}: {each.verdict}: {each.why}",
            VERDICTS.get(each.verdict, Tone.PLAIN),
        )
        for each in explanation.changes
    ]  # fmt: skip
    return Plot(
        "Throughput, and changes",
        Axis("time, UTC", Scale.TIME),
        Axis("samples/s", from_zero=True),
        [
            Dots(
                "profiles",
                [
                    Dot(
                        each.at, each.samples_per_s,
                        note=f"{words.rate(each.samples_per_s) or '0'} samples/s on {each.workers} worker(s), "
                             f"{each.ps} PS, {words.utc(each.at)}",
                    )
                    for each in profiles
                ],
                is_joined=True,
            )
        ],
        moments=moments,
        note="dotted lines: changes (green kept, orange taken back, grey cancelled)" if moments else "",
        empty="it has sent no profile yet",
    )  # fmt: skip
