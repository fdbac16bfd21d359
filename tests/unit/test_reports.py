"""A test that fails is told as such, whatever it has left behind."""

import subprocess
import sys
from pathlib import Path

FAILS = '''
import ast, gc

class Late:
    """Collected, it parses source, as a task does whose exception nobody has read, by way of its traceback."""

    def __init__(self):
        self.me = self

    def __del__(self):
        def deep(calls):
            return deep(calls - 1) if calls else ast.parse("a = 1")

        if ALIVE:
            Late()                               # so that each collection has one
            deep(20)

ALIVE = True

def test_fails():
    for _ in range(10):
        Late()
    gc.set_threshold(50, 2, 2)
    assert [1, 2] == [1, 3]

def test_goes_on():
    global ALIVE
    ALIVE = False
'''


def test_a_failure_is_reported_though_what_is_collected_meanwhile_parses_source(tmp_path: Path) -> None:
    file = tmp_path / "test_fails.py"
    file.write_text(FAILS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "0", "-q"]
    told = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(file)], capture_output=True, text=True,
        cwd=Path(__file__).parents[2], timeout=300, check=False,
    )
    assert "1 failed, 1 passed" in told.stdout, told.stdout + told.stderr
