"""How far something long is: a rate measured over the newest minute, the time left by it, lines and bars."""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime import progress as module
from recmesh.runtime.progress import Pace, Progress, duration, is_terminal
from tests.support.terminal import Terminal
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]


class FakeClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeTerminal(io.StringIO):
    """Says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_time_left_follows_from_the_rate() -> None:
    pace = Pace()
    for second in range(0, 11):
        pace.observe(second * 50.0, float(second))
    assert pace.per_s(10.0) == pytest.approx(50.0) and pace.left_s(1000.0, 10.0) == pytest.approx(10.0)


def test_an_old_rate_is_forgotten() -> None:
    pace = Pace(window_s=60.0)
    for second in range(0, 600, 10):
        pace.observe(second * 1000.0, float(second))
    done = 590_000.0
    for second in range(600, 700, 10):
        done += 10.0
        pace.observe(done, float(second))
    assert pace.per_s(690.0) == pytest.approx(1.0)


def test_steps_that_are_longer_than_the_window_still_have_a_rate() -> None:
    pace = Pace(window_s=60.0)
    for step in range(4):
        pace.observe(float(step), step * 500.0)
    assert pace.left_s(10.0, 1500.0) == pytest.approx(7 * 500.0)


def test_a_standstill_makes_the_rate_smaller_and_a_step_under_way_does_not() -> None:
    pace = Pace()
    for second in range(0, 50, 10):
        pace.observe(float(second), float(second))
    assert pace.per_s(49.0) == pytest.approx(1.0)
    assert pace.per_s(400.0) < 0.15


def test_what_is_thrown_away_begins_the_measurement_anew() -> None:
    pace = Pace()
    pace.observe(0.0, 0.0)
    pace.observe(900.0, 9.0)
    pace.observe(500.0, 10.0)
    assert pace.per_s(10.0) == 0.0 and pace.left_s(1000.0, 10.0) is None
    pace.observe(510.0, 11.0)
    assert pace.per_s(11.0) == pytest.approx(10.0)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.01, 1e4)), min_size=1, max_size=40), st.floats(0, 1e5))
def test_the_time_left_is_never_below_zero(steps: list[tuple[float, float]], later_s: float) -> None:
    pace, now = Pace(), 0.0
    for done, took_s in steps:
        now += took_s
        pace.observe(done, now)
    assert pace.per_s(now + later_s) >= 0 and (pace.left_s(1e6, now + later_s) or 0.0) >= 0


def test_a_line_has_share_count_rate_and_time_left(clock: FakeClock) -> None:
    progress = Progress("replay", total=1000, unit="rows", clock=clock, stream=io.StringIO())
    progress.update(0)
    clock.now += 10
    progress.update(400, note="at 08:00")
    assert progress.line() == "replay: 40%, 400 of 1,000 rows, 40 rows/s, at 08:00, 15s left"


def test_without_a_total_it_tells_how_long_it_has_taken(clock: FakeClock) -> None:
    progress = Progress("join", unit="messages", clock=clock, stream=io.StringIO())
    progress.update(7)
    clock.now += 150
    assert progress.line() == "join: 7 messages, 2m so far"


def test_a_rate_that_is_told_goes_before_the_measured_one(clock: FakeClock) -> None:
    progress = Progress("job", total=1000, unit="samples", clock=clock, stream=io.StringIO())
    progress.update(500, rate=5.0)
    assert progress.text() == "50%, 500 of 1,000 samples, 5 samples/s, 2m left"


def test_what_should_be_over_and_is_not_has_no_time_left(clock: FakeClock) -> None:
    progress = Progress("job", total=1000, unit="samples", clock=clock, stream=io.StringIO())
    progress.update(900, rate=10.0)
    clock.now += 4
    assert progress.text().endswith("6s left")
    clock.now += 26
    assert progress.text() == "90%, 900 of 1,000 samples, 10 samples/s, 30s so far"


def test_steps_that_are_not_alike_have_no_time_left(clock: FakeClock) -> None:
    progress = Progress("partition", total=4, unit="steps", timed=False, clock=clock, stream=io.StringIO())
    progress.update(0)
    clock.now += 10
    progress.update(3, note="writes the halves")
    assert progress.text() == "75%, 3 of 4 steps, writes the halves, 10s so far"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (99, "99s"), (100, "2m"), (3600, "60m"), (7200, "2.0h"), (90_000, "25h"),
                          (200_000, "2d")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_come_at_a_bounded_rate_and_say_when_it_is_done() -> None:
    stream = io.StringIO()
    with Progress("load", total=10_000, unit="rows", stream=stream, every_s=0.05) as progress:
        for done in range(10_000):
            progress.update(done)
        until(lambda: stream.getvalue().count("\n") >= 2)
    lines = stream.getvalue().splitlines()
    assert len(lines) < 10_000 / 10 and all(line.startswith("load: ") for line in lines)
    assert re.fullmatch(r"load: done in \d+s", lines[-1])


def test_what_is_soon_over_or_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with Progress("short", stream=stream) as progress:
        progress.update(1)
    with Progress("document", stream=stream, quiet=True, every_s=0.001) as progress:
        progress.update(1)
    assert stream.getvalue() == ""


def test_a_failure_is_not_called_done() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="broken"), Progress("x", stream=stream, every_s=0.01):
        until(lambda: bool(stream.getvalue()))
        raise ValueError("broken")
    assert "done" not in stream.getvalue()


def test_a_reader_that_is_gone_stops_nothing() -> None:
    stream = io.StringIO()
    with Progress("x", stream=stream, every_s=0.01) as progress:
        stream.close()
        until(lambda: progress._thread is not None and not progress._thread.is_alive())


@pytest.mark.parametrize(("term", "shown"), [("xterm-256color", True), ("dumb", False), ("", False)])
def test_a_bar_needs_a_terminal_that_can_draw(term: str, shown: bool) -> None:
    assert is_terminal(FakeTerminal(), {"TERM": term}) is shown
    assert not is_terminal(io.StringIO(), {"TERM": term})


SCRIPT = """
import sys, time
from recmesh.runtime.progress import Progress
with Progress("work", total=400, unit="rows") as progress:
    for done in range(0, 400):
        progress.update(done, note=f"row {done}")
        if done % 100 == 50:
            print(f"told {done}")
        if done == 300:
            input()
        time.sleep(0.01)
print("after it")
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    import os

    made = Terminal([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    yield made
    made.close()


def test_on_a_terminal_the_bar_is_drawn_again_below_what_is_printed_and_goes_at_the_end(terminal: Terminal) -> None:
    until(lambda: "75%, 300 of 400 rows" in terminal.text, timeout_s=60)
    until(lambda: re.search(r"\d+s left", terminal.text) is not None, timeout_s=60)
    assert "━" in terminal.text and "told 250" in terminal.text
    terminal.type("\n")
    assert terminal.process.wait(60) == 0
    until(lambda: "after it" in terminal.text)
    after = terminal.raw[terminal.raw.rindex("told 350"):]
    assert "\x1b[2K" in after, "the bar is erased"
    assert "work" not in terminal.text[terminal.text.rindex("after it"):]


def test_the_bar_is_no_part_of_what_goes_to_a_file(tmp_path: Path) -> None:
    import os

    out = tmp_path / "out"
    script = SCRIPT.replace("input()", "pass")
    command = ["sh", "-c", f'exec "$0" -c "$1" > {out}', sys.executable, script]
    made = Terminal(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        assert made.process.wait(60) == 0
    finally:
        made.close()
    assert out.read_text() == "told 50\ntold 150\ntold 250\ntold 350\nafter it\n"
    assert "of 400 rows" in made.text and module.LINE_EVERY_S > 1
