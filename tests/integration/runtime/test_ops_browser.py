"""The ops page in a real browser, where one is installed."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import NatsServer, free_port, nats
from tests.support.waiting import until

pytestmark = pytest.mark.integration
__all__ = ["nats"]

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def browser_page() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser.new_page(color_scheme="dark")
        finally:
            browser.close()


def launch(nats_url: str, port: int, ready: Path) -> "subprocess.Popen[bytes]":
    ready.unlink(missing_ok=True)
    env = {"RECMESH_NATS_URL": nats_url, "RECMESH_HTTP_ADDRESS": f"127.0.0.1:{port}",
           "RECMESH_READY_FILE": str(ready)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.runtime.small_service"], env=os.environ | env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[3],
    )
    until(lambda: ready.exists() or process.poll() is not None)
    assert process.poll() is None
    return process


def test_the_page_lives_through_the_service_being_killed_and_runs_nothing_it_shows(
    nats: NatsServer, tmp_path: Path, browser_page: Any
) -> None:
    port, ready = free_port(), tmp_path / "ready.json"
    problems: list[str] = []
    browser_page.on("pageerror", lambda error: problems.append(str(error)))
    process = launch(nats.url, port, ready)
    try:
        browser_page.goto(f"http://127.0.0.1:{port}/")
        browser_page.wait_for_selector("#live.ok")
        browser_page.wait_for_selector(".chart canvas")
        assert browser_page.inner_text(".tile .value") == str(process.pid)
        assert browser_page.evaluate("document.documentElement.dataset.theme") == "dark"
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        browser_page.wait_for_selector("#live.warn")
        process = launch(nats.url, port, ready)
        browser_page.wait_for_selector("#live.ok")
        until(lambda: browser_page.inner_text(".tile .value") == str(process.pid))
        assert browser_page.title() == "small · recmesh"
        assert problems == []
    finally:
        process.kill()
        process.wait(20)
