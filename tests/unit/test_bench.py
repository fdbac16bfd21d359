"""`python -m bench`."""

import pytest

from bench.__main__ import main, names


@pytest.mark.parametrize("asked", [["--list"], []])
def test_each_benchmark_is_listed_with_a_line(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert all(line.split(maxsplit=1)[1].endswith(".") for line in lines)
