"""Values as JSON documents in the database, and back. Fields that a newer release added are left alone."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from services.brain.domain.loans.ledger import Cause, Loan, State
from services.brain.domain.model import (
    Change,
    Fit,
    FitPoint,
    FrontPoint,
    History,
    Job,
    Look,
    Plan,
    Profile,
    RolePlan,
    RoleUse,
    ScheduleStep,
    Similar,
)

T = TypeVar("T")


def to_document(value: History | Plan | Profile | Look | Change | Loan) -> dict[str, Any]:
    """Plain JSON types only."""
    return asdict(value)


def _known(kind: type[T], document: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # always a dataclass here
    return {name: value for name, value in document.items() if name in names}


def to_history(document: Mapping[str, Any]) -> History:
    """From `to_document`."""
    plain = _known(History, document)
    plain["job"] = Job(**_known(Job, plain["job"]))
    plain["final_plan"] = tuple(RolePlan(**_known(RolePlan, each)) for each in plain["final_plan"])
    return History(**plain)


def to_plan(document: Mapping[str, Any]) -> Plan:
    """From `to_document`."""
    plain = _known(Plan, document)
    plain["roles"] = tuple(RolePlan(**_known(RolePlan, each)) for each in plain["roles"])
    plain["similar"] = tuple(Similar(**_known(Similar, each)) for each in plain["similar"])
    return Plan(**plain)


def to_profile(document: Mapping[str, Any]) -> Profile:
    """From `to_document`."""
    plain = _known(Profile, document)
    plain["roles"] = tuple(
        RoleUse(**_known(RoleUse, each) | {"has": RolePlan(**_known(RolePlan, each["has"]))})
        for each in plain.get("roles", ())
    )
    return Profile(**plain)


def to_look(document: Mapping[str, Any]) -> Look:
    """From `to_document`."""
    plain = _known(Look, document)
    for name in ("now", "chosen"):
        plain[name] = tuple(RolePlan(**_known(RolePlan, each)) for each in plain[name])
    fit = _known(Fit, plain["fit"])
    fit["points"] = tuple(FitPoint(**_known(FitPoint, each)) for each in fit["points"])
    plain["fit"] = Fit(**fit | {"notes": tuple(fit["notes"])})
    plain["front"] = tuple(FrontPoint(**_known(FrontPoint, each)) for each in plain["front"])
    plain["schedule"] = tuple(ScheduleStep(**_known(ScheduleStep, each)) for each in plain.get("schedule", ()))
    return Look(**plain)


def to_change(document: Mapping[str, Any]) -> Change:
    """From `to_document`."""
    plain = _known(Change, document)
    for name in ("before", "after"):
        plain[name] = tuple(RolePlan(**_known(RolePlan, each)) for each in plain[name])
    return Change(**plain)


def to_loan(document: Mapping[str, Any]) -> Loan:
    """From `to_document`."""
    plain = _known(Loan, document)
    return Loan(**plain | {"state": State(plain["state"]), "cause": Cause(plain["cause"])})
