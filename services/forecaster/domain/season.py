"""Which past a forecast repeats."""

from dataclasses import dataclass

from recmesh.runtime.errors import InvalidArgument, Violation

DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Season:
    """`steps` values long; 1 is none: the last value is carried forward."""

    steps: int
    note: str

    def seconds(self, step_s: float) -> float:
        """Length; 0 for none."""
        return self.steps * step_s if self.steps > 1 else 0.0


def season_for(*, count: int, step_s: float, wanted_s: float = 0.0, usual_s: float = 0.0) -> Season:
    """The season of a series with `count` values.

    A week where two weeks are there, else a day where two days are there: a season that was seen once
    only cannot be told from chance, and has no errors to make intervals from. `usual_s`, where it can be seen, comes
    before both; `wanted_s` overrules.
    """
    if wanted_s:
        steps = round(wanted_s / step_s)
        if steps < 1 or abs(steps * step_s - wanted_s) > 1e-6 * step_s:
            raise InvalidArgument(
                "cannot use the season",
                violations=[Violation("season_s", f"{wanted_s:g} is not a multiple of the step {step_s:g}")],
            )
        if count < 2 * steps:
            lack = f"the asked season of {wanted_s:g} s needs {2 * steps} values, there are {count}"
            return Season(1, f"{lack}: no season")
        return Season(steps, f"season of {wanted_s:g} s as asked")
    for name, length_s in ((f"{usual_s:g} s", usual_s), ("week", WEEK_S), ("day", DAY_S)):
        steps = round(length_s / step_s)
        if steps >= 2 and abs(steps * step_s - length_s) < 1e-6 and count >= 2 * steps:
            return Season(steps, f"repeats the {name} before")
    return Season(1, f"{count} values are less than two days: no season")
