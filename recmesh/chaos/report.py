"""What a run has done and found."""

import math
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from recmesh.chaos.schedule import TARGETS
from recmesh.chaos.verify import Judgement


@dataclass(slots=True)
class Report:
    """All counts are of this run alone."""

    job: str
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    """SIGKILLs by target."""
    stops: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    """Kills of a process that was held at a gate with work in flight, by target."""
    gates: Counter[str] = field(default_factory=Counter)
    """The same by gate."""
    pushes: dict[str, int] = field(default_factory=dict)
    """What the proxy did to them, by action."""
    missed: list[str] = field(default_factory=list)
    """Strikes that were not carried out, with the reason."""
    rare: Counter[str] = field(default_factory=Counter)
    """Of usurp, rewind and shift, how often each was done."""
    scalings: int = 0
    """How often another number of parameter servers was asked for."""
    phase: str = ""
    reason: str = ""
    samples: int = 0
    total: int = 0
    rollbacks: int = 0
    requeues: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    broken: str = ""
    """The rule that was off."""
    judgements: list[Judgement] = field(default_factory=list)
    loss: float = math.nan
    """Of the disturbed job; a counting job has none."""
    undisturbed_losses: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong beside the counts, in words."""

    @property
    def lost(self) -> int:
        """The worst snapshot's."""
        return max((judgement.lost for judgement in self.judgements), default=0)

    @property
    def doubled(self) -> int:
        """The worst snapshot's."""
        return max((judgement.doubled for judgement in self.judgements), default=0)

    @property
    def faults(self) -> int:
        """The worst snapshot's."""
        return max((judgement.faults for judgement in self.judgements), default=0)

    @property
    def evicted(self) -> int:
        """Updates of rows that were evicted, of the snapshot with the most."""
        return max((judgement.evicted for judgement in self.judgements), default=0)

    @property
    def loss_delta_sd(self) -> float | None:
        """|loss - mean of undisturbed ones| in their standard deviations; None: fewer than two, or one is no number."""
        if len(self.undisturbed_losses) < 2 or not all(map(math.isfinite, [self.loss, *self.undisturbed_losses])):
            return None
        spread = statistics.stdev(self.undisturbed_losses)
        delta = abs(self.loss - statistics.fmean(self.undisturbed_losses))
        return delta / spread if spread else (0.0 if delta == 0.0 else math.inf)

    @property
    def inflight_hits_min(self) -> int:
        """Of the seven targets, the least."""
        return min(self.hits[target] for target in TARGETS)

    @property
    def is_right(self) -> bool:
        """The job succeeded, and nothing differs from the truth."""
        return not self.problems and all(judgement.is_right for judgement in self.judgements)

    @property
    def verdict(self) -> str:
        """right | wrong | inconclusive: a rule was off, and nothing shows it."""
        if not self.is_right:
            return "wrong"
        return "inconclusive" if self.broken else "right"

    def as_document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "job": self.job, "seed": self.seed, "verdict": self.verdict, "rule_off": self.broken or None,
            "lost": self.lost, "doubled": self.doubled, "faults": self.faults, "problems": self.problems,
            "kills": sum(self.kills.values()), "kills_by_target": dict(self.kills), "stops": sum(self.stops.values()),
            "inflight_hits": {target: self.hits[target] for target in TARGETS},
            "inflight_hits_min": self.inflight_hits_min, "gates": dict(self.gates), "missed": self.missed,
            "pushes": self.pushes,
            "loss": None if math.isnan(self.loss) else self.loss, "undisturbed_losses": self.undisturbed_losses,
            "loss_delta_sd": self.loss_delta_sd,
            "usurped": self.rare["usurp"], "rewound": self.rare["rewind"], "shifted": self.rare["shift"],
            "scalings": self.scalings, "evicted": self.evicted,
            "phase": self.phase, "samples": self.samples, "total": self.total, "rollbacks": self.rollbacks,
            "requeues": self.requeues, "quarantined": self.quarantined, "seconds": round(self.seconds, 1),
            "snapshots": [asdict(judgement) for judgement in self.judgements],
        }
