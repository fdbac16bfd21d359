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


@pytest.fixture(params=["dark"])
def browser_page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page in a browser whose user likes it dark, or as the test says."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser.new_page(color_scheme=request.param)
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


@pytest.mark.long
@pytest.mark.parametrize("browser_page", ["dark", "light"], indirect=True)
def test_a_job_is_chosen_by_its_link_and_left_again_without_a_word_to_other_machines(
    nats: NatsServer, tmp_path: Path, browser_page: Any, request: pytest.FixtureRequest
) -> None:
    port, ready = free_port(), tmp_path / "ready.json"
    problems: list[str] = []
    asked: list[str] = []
    browser_page.on("pageerror", lambda error: problems.append(str(error)))
    browser_page.on("request", lambda each: asked.append(each.url))
    process = launch(nats.url, port, ready)
    try:
        browser_page.goto(f"http://127.0.0.1:{port}/")
        browser_page.wait_for_selector("#live.ok")
        theme = request.node.callspec.params["browser_page"]
        assert browser_page.evaluate("document.documentElement.dataset.theme") == theme
        browser_page.click("text=clicks & more")
        browser_page.wait_for_selector("#live.ok")
        assert browser_page.url.endswith("/?job=clicks%20%26%20more")
        assert "ads" not in browser_page.inner_text("#panel-3")
        assert "nothing yet" in browser_page.inner_text("#panel-4"), "the series of the other job"
        browser_page.click("text=all jobs")
        browser_page.wait_for_selector("#panel-4 canvas")
        assert "ads" in browser_page.inner_text("#panel-3")
        browser_page.click("#theme")
        other = {"dark": "light", "light": "dark"}[theme]
        assert browser_page.evaluate("document.documentElement.dataset.theme") == other
        assert problems == [] and asked
        assert [url for url in asked if not url.startswith((f"http://127.0.0.1:{port}/", "data:"))] == []
    finally:
        process.kill()
        process.wait(20)
