"""How far something long is, on stderr: a live bar with the time left on a terminal, elsewhere a line now and then.

The time left follows from the rate that was measured, of the last minute; what has no total has no time left, but tells
how long it has taken. Nothing that runs for less than a few seconds is told of in a pipe.
"""

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.live import Live

LINE_EVERY_S = 10.0
"""Between two plain lines: a log of an hour has 360 of them at most."""
WINDOW_S = 60.0
_FRAMES_PER_S = 4.0
_BAR = 30


class Pace:
    """A rate, of the newest `window_s` seconds of observations and never of less than two of them."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def observe(self, done: float, now: float) -> None:
        """What is done by now. Less than before: something was thrown away, and the measurement begins anew."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        if self._seen and len(self._seen) > 1 and done == self._seen[-1][1]:
            return      # `per_s` asks by the clock, so that a standstill shows
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._window_s:
            self._seen.popleft()

    def per_s(self, now: float) -> float:
        """0 while it is not known. A standstill makes it smaller."""
        if len(self._seen) < 2:
            return 0.0
        (began, before), (last, done) = self._seen[0], self._seen[-1]
        # The next step may be under way: only what is later than a step usually takes counts as standing still.
        usual_s = (last - began) / (len(self._seen) - 1)
        took_s = max(last, now - usual_s) - began
        return (done - before) / took_s if took_s > 0 else 0.0

    def left_s(self, total: float, now: float) -> float | None:
        """Seconds until `total`; None while nobody can know."""
        rate = self.per_s(now)
        if not self._seen or rate <= 0:
            return None
        last, done = self._seen[-1]
        return max(0.0, (total - done) / rate - (now - last))


class Progress:
    """Of one long thing; to be entered. May be told from any thread."""

    def __init__(
        self, what: str, *, total: float | None = None, unit: str = "", amount: Callable[[float], str] | None = None,
        quiet: bool = False, timed: bool = True, stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic, every_s: float = LINE_EVERY_S,
    ) -> None:
        """total: of which `done` becomes a share; None: not known. unit: as `rows`. amount: how a number of them is
        written; its text has the unit then. quiet: no plain lines, as where a document was asked for; a terminal has
        its bar all the same. timed: whether steps are alike, so that a rate says when it ends."""
        self.what, self.total, self.unit = what, total, unit
        self._amount = amount or (lambda count: f"{count:,.0f}")
        self._has_unit = amount is not None
        self._timed = timed
        self._stream = stream
        self._clock, self._every_s, self._quiet = clock, every_s, quiet
        self._pace = Pace()
        self._lock = threading.Lock()
        self._done: float | None = None
        self._rate: float | None = None
        self._rated_at = 0.0
        self._note = ""
        self._began = clock()
        self._told = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._began = self._clock()
        stream = self._stream or sys.stderr
        if is_terminal(stream):
            self._live = self._screen(stream)
            self._live.start()
        elif not self._quiet:
            self._thread = threading.Thread(target=self._speak, args=(stream,), name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._live is not None:
            self._live.stop()
        if self._thread is not None:
            self._thread.join()
            if self._told and kind is None:
                with contextlib.suppress(OSError, ValueError):      # nobody reads any more
                    print(f"{self.what}: done in {duration(self._clock() - self._began)}",
                          file=self._stream or sys.stderr, flush=True)

    def update(
        self, done: float | None = None, *, total: float | None = None, note: str | None = None,
        rate: float | None = None,
    ) -> None:
        """What is done of the total, and what is being done (`note`). rate: per second, where somebody measured it
        better than it can be seen from here."""
        now = self._clock()
        with self._lock:
            if done is not None:
                self._done = done
                self._pace.observe(done, now)
            self.total = total or self.total
            self._note = self._note if note is None else note
            self._rate, self._rated_at = rate, now

    def share(self) -> float | None:
        """0 to 1; None while the total or what is done is not known."""
        with self._lock:
            return min(1.0, (self._done or 0.0) / self.total) if self.total else None

    def text(self) -> str:
        """`46%, 12,345 of 27,000 rows, 1,234 rows/s, 3m left`."""
        now = self._clock()
        with self._lock:
            return ", ".join(self._parts(now))

    def line(self) -> str:
        """The text after what it is of."""
        return f"{self.what}: {self.text()}"

    def _parts(self, now: float) -> Iterator[str]:
        unit = "" if self._has_unit or not self.unit else f" {self.unit}"
        rate = self._rate if self._rate is not None else self._pace.per_s(now)
        left = self._pace.left_s(self.total, now) if self.total and self._timed else None
        if self._rate and self.total and self._done is not None:
            left = (self.total - self._done) / self._rate - (now - self._rated_at)
        if self._done is not None:
            if self.total:
                yield f"{min(1.0, self._done / self.total):.0%}"
                yield f"{self._amount(self._done)} of {self._amount(self.total)}{unit}"
            else:
                yield f"{self._amount(self._done)}{unit}"
            if rate and self._timed and (self.unit or self._has_unit):
                yield f"{self._amount(rate) if rate >= 1 else f'{rate:.2g}'}{unit}/s"
        if self._note:
            yield self._note
        if left is not None and left > 0:      # else it should be over, and is not: nobody knows for how long
            yield f"{duration(left)} left"
        else:
            yield f"{duration(now - self._began)} so far"

    def _speak(self, stream: IO[str]) -> None:
        while not self._end.wait(self._every_s):
            self._told += 1
            try:
                print(self.line(), file=stream, flush=True)
            except (OSError, ValueError):       # nobody reads any more: the work goes on
                return

    def _screen(self, stream: IO[str]) -> "Live":
        from rich.console import Console
        from rich.live import Live

        # What is printed meanwhile goes above the bar where both are on the terminal, and to its file where it is not.
        return Live(
            get_renderable=self._drawn, console=Console(file=stream), refresh_per_second=_FRAMES_PER_S, transient=True,
            redirect_stdout=sys.stdout.isatty(), redirect_stderr=True,
        )

    def _drawn(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        share = self.share()
        bar = ProgressBar(
            total=1.0 if share is not None else None, completed=share or 0.0, width=_BAR, pulse=share is None,
            complete_style="cyan", finished_style="green",
        )
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_row(Text(self.what), bar, Text(self.text()))
        return row


def is_terminal(stream: IO[str], env: Mapping[str, str] = os.environ) -> bool:
    """Whether a bar can be drawn there."""
    return stream.isatty() and env.get("TERM", "") not in ("dumb", "unknown", "")


def duration(seconds: float) -> str:
    """`45s`, `3m`, `2.5h`, `3d`."""
    for limit, unit, name in ((99.5, 1, "s"), (99.5 * 60, 60, "m"), (36 * 3600, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f}h" if name == "h" and value < 10 else f"{value:.0f}{name}"
    return f"{seconds / 86400:.0f}d"
