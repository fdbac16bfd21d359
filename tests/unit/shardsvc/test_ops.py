"""The page of shardsvc, from what was looked at last."""

from types import SimpleNamespace
from typing import Any, cast

from recmesh.runtime.clock import system_clock
from recmesh.runtime.ops import Cell, Tone
from services.shardsvc.domain.alignment import Lag
from services.shardsvc.ops import View


def test_a_partition_whose_messages_are_all_trained_is_caught_up_and_one_that_is_behind_says_why() -> None:
    lags = [
        Lag("jetstream:flights-0", 40, 40, 0.0, assigned=False),
        Lag("jetstream:flights-1", 30, 44, 1.5, assigned=True),
        Lag("jetstream:flights-2", 30, 33, 0.5, assigned=False),
    ]
    view = View(
        cast(Any, SimpleNamespace(latest={})), cast(Any, None), cast(Any, SimpleNamespace(known={"online": lags})),
        clock=system_clock,
    )
    rows = {row[1]: row[2] for row in view._partitions()}
    assert rows == {
        "jetstream:flights-0": Cell("caught up", Tone.OK),
        "jetstream:flights-1": Cell("in training", Tone.OK),
        "jetstream:flights-2": Cell("just arrived", Tone.IDLE),
    }
