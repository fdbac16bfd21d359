"""A CN before several HNs of one model: whom to ask, whom to leave alone, when to ask a second one."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

from recmesh.runtime.errors import CallerError, DeadlineExceeded, Unavailable
from recmesh.serving.admission.client import Refused
from recmesh.serving.admission.domain.choice import Choice
from recmesh.serving.admission.domain.ejection import Ejection, Rules
from recmesh.serving.admission.domain.hedging import HedgeRules, Hedging

T = TypeVar("T")
Attempt = Callable[[str, float], Awaitable[T]]
"""(HN's name, seconds left): admit, send, wait for the answer. Must be safe to do twice, and to cancel."""
_NODES_MOST = 3
"""Of one call."""


class Fleet:
    """The HNs of one model as one CN sees them. Used in one event loop."""

    def __init__(
        self, *, rng: random.Random, ejection: Rules | None = None, hedging: HedgeRules | None = None
    ) -> None:
        self._rng = rng
        self._choice = Choice()
        self._ejection = Ejection(ejection or Rules())
        self._hedging = Hedging(hedging or HedgeRules())

    def update(self, names: Iterable[str]) -> None:
        """These HNs there are."""
        names = list(names)
        self._choice.update(names)
        self._ejection.update(names)

    async def call(self, attempt: Attempt[T], *, left_s: float) -> T:
        """The first answer of at most three HNs. A refusal or a failure leads to the next one at once, silence beyond
        the usual to a second one beside it, within the budget; whoever is not needed any more is cancelled.

        The last refusal or error is raised when none is left; DeadlineExceeded when the time is over; errors that are
        the request's own fault at once.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + left_s
        after_s = self._hedging.began()
        asked: set[str] = set()
        running: set[asyncio.Task[T]] = set()
        failure: BaseException | None = None
        try:
            while True:
                if not running and not self._start(attempt, asked, running, ends):
                    raise failure or Unavailable("there is no accelerator node for this model", reason="NO_HN")
                may_hedge = after_s is not None and len(running) == 1 and len(asked) < _NODES_MOST
                patience_s = ends - loop.time()
                if may_hedge and after_s is not None:
                    patience_s = min(patience_s, after_s)
                done, running = await asyncio.wait(
                    running, timeout=max(0.0, patience_s), return_when=asyncio.FIRST_COMPLETED
                )
                errors = [task.exception() for task in done]
                for task, error in zip(done, errors, strict=True):
                    if error is None:
                        return task.result()
                    failure = error
                if final := next(filter(_is_final, errors), None):
                    raise final
                if loop.time() >= ends:
                    raise failure or DeadlineExceeded(
                        f"no accelerator node has answered within {left_s:.3f} s", reason="DEADLINE_AT_HN"
                    )
                if not done and may_hedge:
                    after_s = None          # one hedge a call
                    if self._hedging.spend():
                        self._start(attempt, asked, running, ends)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _start(
        self, attempt: Attempt[T], asked: set[str], running: set[asyncio.Task[T]], ends: float
    ) -> bool:
        if len(asked) >= _NODES_MOST:
            return False
        name = self._pick(asked)
        if name is None:
            return False
        asked.add(name)
        running.add(asyncio.ensure_future(self._one(attempt, name, ends)))
        return True

    def _pick(self, asked: Collection[str]) -> str | None:
        now = asyncio.get_running_loop().time()
        name = self._choice.pick(now, self._rng, without=self._ejection.out(now).union(asked))
        # better one that was ejected than none
        return name or self._choice.pick(now, self._rng, without=asked)

    async def _one(self, attempt: Attempt[T], name: str, ends: float) -> T:
        loop = asyncio.get_running_loop()
        began, seconds, is_whole = loop.time(), None, True
        self._choice.began(name)
        try:
            answer = await attempt(name, ends - began)
            seconds = loop.time() - began
            self._ejection.answered(name, seconds, loop.time())
            self._hedging.answered(seconds)
            return answer
        except Refused as error:
            if error.refusal.retry_after_s:
                self._choice.busy(name, loop.time() + error.refusal.retry_after_s)
            raise
        except CallerError:
            raise
        except asyncio.CancelledError:          # another was faster: so long it took at least
            seconds, is_whole = loop.time() - began, False
            raise
        except Exception:
            self._ejection.failed(name, loop.time())
            raise
        finally:
            self._choice.ended(name, loop.time(), seconds=seconds, is_whole=is_whole)


def _is_final(error: BaseException | None) -> bool:
    if isinstance(error, Refused):
        return not error.refusal.reason.elsewhere
    return isinstance(error, CallerError)
