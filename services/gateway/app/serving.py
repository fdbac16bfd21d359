"""Which versions serve, and requests to them. Nothing here is stored: the registry is what lasts."""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from recmesh.runtime.clock import Clock
from recmesh.runtime.deadline import deadline, remaining_s
from recmesh.runtime.errors import DeadlineExceeded, MeshError
from services.gateway.app import ensembles
from services.gateway.app.observation import Observation
from services.gateway.app.ports import Features, LogPrediction, Runtimes
from services.gateway.app.served import Served
from services.gateway.app.shadow import Shadow
from services.gateway.domain import inference, predictions, traffic
from services.gateway.domain.inference import InferRequest, InferResponse
from services.gateway.domain.predictions import Prediction
from services.gateway.domain.statistics import Outcome, Times
from services.gateway.domain.traffic import Traffic

REST_CHECK_S = 1.0
NO_RULES = Traffic()
OVER = "DEADLINE_EXCEEDED"


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Bounds on the time of requests and loads."""

    infer_timeout_s: float = 30.0
    max_infer_timeout_s: float = 300.0
    load_timeout_s: float = 300.0
    retire_s: float = 30.0
    """How long a replaced version may finish what is in it."""


class Serving:
    """The loaded versions of each name; a version takes its place in one step, when it is ready."""

    def __init__(
        self, runtimes: Runtimes, features: Features, observation: Observation, *, clock: Clock, limits: ServingLimits,
        draw: Callable[[], float] = random.random, log_prediction: LogPrediction = lambda _: None,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._runtimes = runtimes
        self._features = features
        self._observation = observation
        self._clock = clock
        self._limits = limits
        self._draw = draw
        self._log_prediction = log_prediction
        self._new_id = new_id
        self._loaded: dict[str, dict[str, Served]] = {}   # by name, then version; loaded last comes last
        self._traffic: dict[str, Traffic] = {}
        self.shadow = Shadow(self._copy, draw=draw)

    def traffic(self, name: str) -> Traffic:
        """The rules of that name."""
        return self._traffic.get(name, NO_RULES)

    def set_traffic(self, name: str, rules: Traffic) -> list[Served]:
        """New rules from now on; answers with the versions that leave by them."""
        self._traffic[name] = rules
        return self._leaving(name)

    def follow_rules(self, name: str, rules: Traffic) -> None:
        """Another gateway's rules from now on; which versions leave by them is for the caller to say."""
        self._traffic[name] = rules

    def current(self, name: str) -> Served | None:
        """The version that speaks for that name: of the greatest weight, else the one loaded last."""
        loaded = self._loaded.get(name, {})
        weights = self.traffic(name).weights
        weighted = [item for version, item in loaded.items() if weights.get(version)]
        if weighted:
            return max(weighted, key=lambda item: weights[item.record.version])
        return next((item for item in reversed(loaded.values()) if not self._gets_copies(item)), None)

    def find(self, name: str, version: str = "") -> Served | None:
        """The named version if it is loaded; with no version, the one that speaks for the name."""
        return self._loaded.get(name, {}).get(version) if version else self.current(name)

    @property
    def names(self) -> list[str]:
        """Of models with loaded versions."""
        return list(self._loaded)

    def versions(self, name: str) -> Collection[Served]:
        """All loaded versions of a name, loaded last comes last."""
        return list(self._loaded.get(name, {}).values())

    def all(self) -> list[Served]:
        """All loaded versions of all names."""
        return [served for loaded in self._loaded.values() for served in loaded.values()]

    def choose(self, name: str, version: str = "") -> Served | None:
        """The version that answers a request: the named one, or one by the weights of those that are ready."""
        weights = self.traffic(name).weights
        if version or not weights:
            return self.find(name, version)
        loaded = self._loaded.get(name, {})
        ready = [each for each in weights if each in loaded and self._serves(loaded[each])]
        chosen = traffic.choose(self.traffic(name), ready, self._draw())
        return loaded[chosen] if chosen else self.current(name)

    def is_ready(self, name: str, version: str = "") -> bool:
        """True when a request would be run now, or after bringing a resting version back."""
        if version or not self.traffic(name).weights:
            served = self.find(name, version)
            return served is not None and self._serves(served)
        loaded = self._loaded.get(name, {}).values()
        return any(self._serves(item) for item in loaded if not self._gets_copies(item))

    def swap_in(self, served: Served, *, behind: bool = False) -> list[Served]:
        """Serve this version from now on; answers with those that it replaces. `behind`: as if the others had been
        loaded after it."""
        name, version = served.record.name, served.record.version
        served.last_used = self._clock.monotonic()
        loaded = self._loaded.setdefault(name, {})
        before = loaded.pop(version, None)
        ordered = {version: served, **loaded} if behind else {**loaded, version: served}
        loaded.clear()
        loaded.update(ordered)
        moved = [before] if before is not None and before.runtime != served.runtime else []
        return moved + self._leaving(name)

    def put(self, served: Served, order: Sequence[str]) -> Served | None:
        """Serve this version from now on, beside the others, as if they had been loaded in this order; answers with
        what was in its place, if that was another registration or in another model server."""
        loaded = self._loaded.setdefault(served.record.name, {})
        before, loaded[served.record.version] = loaded.get(served.record.version), served
        served.last_used = self._clock.monotonic()
        self.arrange(served.record.name, order)
        same = before is None or (before.runtime, before.registration) == (served.runtime, served.registration)
        return None if same else before

    def arrange(self, name: str, order: Sequence[str]) -> None:
        """As if versions had been loaded in this order, and all others before them."""
        loaded, places = self._loaded.get(name, {}), {version: place for place, version in enumerate(order)}
        ordered = {version: loaded[version] for version in sorted(loaded, key=lambda each: places.get(each, -1))}
        loaded.clear()
        loaded.update(ordered)

    def take_out(self, name: str, version: str = "") -> list[Served]:
        """Serve a version of the name (or any) no more."""
        loaded = self._loaded.get(name, {})
        gone = [loaded.pop(each) for each in ([version] if version else list(loaded)) if each in loaded]
        if not loaded:
            self._loaded.pop(name, None)
        return gone

    async def retire(self, served: Served) -> None:
        """Free a version that serves no more, once the requests in it are answered."""
        try:
            async with asyncio.timeout(self._limits.retire_s):
                await served.idle.wait()
        except TimeoutError:
            pass  # whoever still waits is answered NOT_LOADED
        async with served.turning:
            again = self._loaded.get(served.record.name, {}).get(served.record.version)
            if not served.is_ensemble and (again is None or again.runtime != served.runtime):
                await self._runtimes.unload(served.runtime, served.record.key)
            if again is None or again.registration != served.registration:
                self._features.forget(served.registration)

    async def rest_idle(self) -> float:
        """Take versions out of memory that were asked nothing for as long as their rules say."""
        now = self._clock.monotonic()
        for name, loaded in list(self._loaded.items()):
            idle_s = self.traffic(name).idle_s
            for served in list(loaded.values()) if idle_s else ():
                if now - served.last_used >= idle_s:
                    await served.rest(self._runtimes)
        return REST_CHECK_S

    async def infer(self, request: InferRequest) -> InferResponse | None:
        """Run the request on the version that its name and weights choose; None: no version is loaded.

        Its time is the `timeout` parameter and whatever bounds the call already, from now on, whatever it waits for.
        """
        inference.refuse_sequences(request.parameters)
        limit_s = inference.timeout_s(
            request.parameters, default_s=self._limits.infer_timeout_s, max_s=self._limits.max_infer_timeout_s
        )
        with deadline(limit_s):
            whole_s = remaining_s() or limit_s
            try:
                return await self._answered(request)
            except DeadlineExceeded as error:
                if error.reason != OVER:
                    raise
                raise DeadlineExceeded(
                    f"the request's whole time of {whole_s:.3g} s is over: {error.message}", reason=OVER
                ) from None

    def _logged(self, served: Served, request: InferRequest, response: InferResponse) -> InferResponse:
        """The answer, with an id where labels will need one; of the ids that are sampled it is logged."""
        log = served.settings.log
        if log is None:
            return response
        id_ = request.id or self._new_id()
        if predictions.is_sampled(id_, log.share):
            self._log_prediction(
                Prediction(
                    id_, response.model, response.version, self._clock.now(), log, request.form, request.inputs,
                    response.outputs,
                )
            )  # fmt: skip
        return replace(response, id=id_)

    async def _answered(self, request: InferRequest, *, step: bool = False) -> InferResponse | None:
        served = self.choose(request.model, request.version)
        if served is None:
            return None
        response = await self._counted(served, request, copy=False)
        rules = self.traffic(request.model)
        if rules.shadow and not request.version and rules.shadow != response.version:
            self.shadow.offer(request, rules)
        return response if step else self._logged(served, request, response)

    async def _copy(self, request: InferRequest, version: str) -> bool:
        """Run a shadow's copy; False when the shadow is not loaded."""
        served = self.find(request.model, version)
        if served is None or not served.is_shadow or not self._serves(served):
            return False
        with deadline(self._limits.infer_timeout_s):
            await self._counted(served, request, copy=True)
        return True

    async def _counted(self, served: Served, request: InferRequest, *, copy: bool) -> InferResponse:
        """Check the request against the model, run it, count it."""
        started = self._clock.monotonic()
        samples, times, error = 0, None, ""
        if not copy:
            self._observation.came[served.record.name, served.record.version] += 1
        try:
            with served.busy():
                request, made = await self._transformed(served, request)
                samples = inference.check_inputs(served.card, request.inputs)
                response, times = await self._run(served, request)
                times = replace(times, input_ns=times.input_ns + made) if made else times
                return response
        except MeshError as failure:
            error = f"{failure.reason}: {failure}"
            raise
        except asyncio.CancelledError:
            error = "CANCELLED: the caller went away"
            raise
        finally:
            served.last_used = self._clock.monotonic()
            self._observation.add(
                Outcome(
                    self._clock.now(), served.record.name, served.record.version, samples,
                    served.last_used - started, times, error, copy,
                )
            )  # fmt: skip

    async def _transformed(self, served: Served, request: InferRequest) -> tuple[InferRequest, int]:
        """The request with the model's inputs, and the nanoseconds that it took to make them of raw columns."""
        if not request.form:
            return request, 0
        if served.card.raw.fault:
            raise inference.no_raw_inputs(served.record.key, served.card.raw.fault)
        started = self._clock.monotonic()
        inputs, _ = await self._features.transform(
            served.registration, served.folder, request.form, request.inputs, timeout_s=_time_left_s(),
            priority=inference.priority(request.parameters),
        )  # fmt: skip
        return replace(request, inputs=tuple(inputs), form=""), int((self._clock.monotonic() - started) * 1e9)

    async def _run(self, served: Served, request: InferRequest) -> tuple[InferResponse, Times]:
        outputs = inference.chosen_outputs(served.card, request)
        priority = inference.priority(request.parameters)
        if served.is_ensemble:
            tensors, times = await ensembles.run(served.card.steps, request, outputs, self._step)
        else:
            await served.awake(self._runtimes, load_timeout_s=self._limits.load_timeout_s)
            tensors, times = await self._runtimes.infer(
                served.runtime, served.record.key, request.inputs, outputs, timeout_s=_time_left_s(),
                priority=priority,
            )  # fmt: skip
        made = InferResponse(
            served.record.name, served.record.version, tuple(tensors), request.id, times.fresh_version
        )
        return made, times

    async def _step(self, request: InferRequest) -> InferResponse:
        """Within the ensemble's own time, and none beside it."""
        response = await self._answered(request, step=True)
        if response is None:
            raise ensembles.not_loaded(request)
        return response

    def _serves(self, served: Served) -> bool:
        if served.is_ensemble:
            return all(self.is_ready(step.model, step.version) for step in served.card.steps)
        return served.resting or self._runtimes.serves(served.runtime, served.record.key)

    def _gets_copies(self, served: Served) -> bool:
        """True of a shadow; one that the rules have made more than that answers until it has moved."""
        return served.is_shadow and served.record.version == self.traffic(served.record.name).shadow

    def _leaving(self, name: str) -> list[Served]:
        """What was loaded to get copies leaves with the rule; it takes no other's place."""
        loaded, rules = self._loaded.get(name, {}), self.traffic(name)
        stay = traffic.kept(
            rules, [version for version, item in loaded.items() if not item.is_shadow or version in rules.needed]
        )
        return [loaded.pop(version) for version in list(loaded) if version not in stay]


def _time_left_s() -> float:
    left = remaining_s()
    assert left is not None, "requests are bounded where they come in"
    if left <= 0:
        raise DeadlineExceeded("it was over before the model was asked", reason=OVER)
    return left
