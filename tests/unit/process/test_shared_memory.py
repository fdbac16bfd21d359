"""What processes of a group share counts once, also while they end."""

import pytest

from recmesh.runtime.process import shim

SHARED = 40 << 20


class Group:
    """Processes that share all they have; one ends after each look at `ends` of them."""

    def __init__(self, count: int, *, ends: int) -> None:
        self.living = [*range(1, count + 1)]
        self._ends = ends

    def field_bytes(self, path: str, names: tuple[str, ...]) -> int:
        pid = int(path.split("/")[2])
        if pid not in self.living:
            return 0
        if "Pss_Anon" not in names:
            return SHARED
        found = SHARED // len(self.living)
        if self._ends:
            self._ends -= 1
            self.living.remove(pid)
        return found


@pytest.mark.parametrize("ends", [0, 3, 7], ids=["none ends", "some end", "all but one end"])
def test_what_is_shared_counts_once_while_processes_end(ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(8, ends=ends)
    monkeypatch.setattr(shim, "_field_bytes", group.field_bytes)
    assert shim._shared_once_bytes([*range(1, 9)]) == SHARED
