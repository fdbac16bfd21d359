"""Models by name: those of packages that cannot be imported or made cost a word, and not the forecasts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from recmesh.plugins import registry
from recmesh.plugins.forecasting import GROUP
from services.forecaster.domain.fitting import Asked
from services.forecaster.domain.forecasters.naive import Persistence
from services.forecaster.domain.history import History
from services.forecaster.runtimes import models


class _Point:
    group, value = GROUP, "mine.models:Mine"

    def __init__(self, name: str, found: Any) -> None:
        self.name, self.found = name, found

    def load(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class NeedsAnArgument(Persistence):
    def __init__(self, path: str) -> None:
        super().__init__()


class Nameless:
    pass


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [_Point("broken", ImportError("no jax")), _Point("asks", NeedsAnArgument), _Point("nameless", Nameless)]

    def found(*, group: str, name: str | None = None) -> list[_Point]:
        return [point for point in points if group == GROUP and name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", found)
    models.forecasters.cache_clear()
    yield
    models.forecasters.cache_clear()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("wanted", [(), ("lagged", "broken", "asks", "nameless")])
def test_those_that_cannot_be_made_are_told_of_and_the_others_answer(wanted: tuple[str, ...]) -> None:
    past = History(np.arange(200.0) % 7 + 1, 0, 3600.0)
    told = models.predict(Asked(f"models {wanted}", past, 2), wanted)
    assert np.isfinite(told.mean).all()
    assert "broken failed: BrokenPlugin: broken (mine.models:Mine) of recmesh.forecasters cannot be loaded" in told.note
    assert "no jax" in told.note
    assert "asks failed: TypeError" in told.note and "nameless failed: AttributeError" in told.note


@pytest.mark.usefixtures("installed")
def test_a_name_that_nobody_installed_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(registry.UnknownPlugin, match=r"no 'oracle' in recmesh.forecasters: there are asks, auto-ets"):
        models.forecasters(("oracle",), dear=False)
