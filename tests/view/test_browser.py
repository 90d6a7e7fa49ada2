"""`otel-rl view` in a real Chromium: the list of runs, a run that is removed, and a real training that stalls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from tests.made_runs import Plan, write_run
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
EVIL = "<img src=x onerror=alert(1)>"
AFTER_S = 8.0
FOUND_S = 15.0
"""A stall is shown so soon after its bound."""
TRAINING = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.stalls.training")
MODEL = "globalThis.Bokeh?.documents[0]?.get_model_by_name"
STEPS = f"{MODEL}('steps')?.end"
REWARDS = f"{MODEL}('reward')?.renderers[0].data_source.data.value.length"
"""None of these while the page is loaded anew."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[[Path], Page]]:
    """Return what serves a directory and opens its list; at the end the browser has complained of nothing."""
    servers: list[subprocess.Popen[str]] = []
    complaints: list[str] = []

    def show(directory: Path) -> Page:
        command = [sys.executable, "-m", "otel_rl", "view", str(directory), "--no-browser", "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stderr is not None
        url = next(line.strip() for line in server.stderr if line.startswith("http"))
        page = browser.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield show
    for server in servers:
        server.terminate()
        server.communicate()
    assert complaints == []


def holds(page: Page, condition: str) -> bool:
    try:
        return bool(page.evaluate(condition))
    except Error as error:  # it is loaded anew, as it does by itself
        assert "navigation" in str(error)
        return False


def until(page: Page, condition: str) -> None:
    # here and not by playwright, which would wait in the page by a script that the page's policy forbids
    assert wait_for(lambda: holds(page, condition)), (condition, page.inner_text("body"))


def test_runs_are_listed_and_one_click_away(show: Callable[[Path], Page], tmp_path: Path) -> None:
    """The state and the worst of each; what is no run has a sentence, and no name is markup. One is removed."""
    write_run(tmp_path, Plan(steps=12))
    write_run(tmp_path, Plan(run_id="nan", steps=12, nan_loss_step=7))
    write_run(tmp_path, Plan(run_id="evil", steps=2)).rename(tmp_path / EVIL.replace("/", ""))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "x.otlp").write_bytes(b"nothing of ours")
    page = show(tmp_path)
    until(page, "document.querySelectorAll('#runs tbody tr').length === 4")
    until(page, "![...document.querySelectorAll('#runs td')].some((one) => one.textContent === 'not read yet')")
    rows = {row.locator("a").inner_text(): row.inner_text() for row in page.locator("#runs tbody tr").all()}
    assert set(rows) == {"healthy", "nan", "damaged", EVIL}
    assert re.search(r"finished\s+trl .*\s12\s.*\sms", rows["healthy"]), rows
    assert "1 warning" in rows["nan"] and "holds no journal" in rows["damaged"]
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("link", name="nan").click()
    until(
        page,
        "document.documentElement.dataset.ready && document.querySelectorAll('figure canvas, figure .plot > *').length",
    )
    assert "Loss was NaN" in page.inner_text("#findings") and not page.is_visible("#now")
    shutil.rmtree(tmp_path / "nan")
    until(page, "document.getElementById('live').textContent.startsWith('This run is gone')")
    assert page.locator("#figure-loss").count() == 1
    page.get_by_role("link", name="all runs").click()
    until(page, "document.querySelectorAll('#runs tbody tr').length === 3")


@pytest.mark.slow
def test_a_training_is_followed_and_its_stall_is_shown(
    show: Callable[[Path], Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks; rank 1 stalls on a sample for 20 s: it is red, says who waits for it, and goes again."""
    pytest.importorskip("trl")
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv("OTEL_RL_STALL_AFTER", str(AFTER_S))
    page = show(runs)
    until(page, "document.getElementById('runs')?.textContent.includes('Nothing is recorded here yet')")
    environ = {
        **os.environ,
        "OTEL_RL_DIR": str(runs),
        "OUTPUT": str(tmp_path / "out"),
    }
    command = [
        sys.executable,
        "-m",
        "otel_rl",
        "run",
        "--",
        sys.executable,
        *TRAINING,
        str(tmp_path / "losses"),
        "sample",
    ]
    training = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until(page, "document.querySelector('#runs tbody td.fact')?.textContent === 'running'")
        page.locator("#runs a").first.click()
        until(page, "document.querySelector('#now .row.stuck')")
        said = page.inner_text("#now .alarm")
        age = re.search(r"rl\.reward parity.* in step 6, for (\d+(?:\.\d+)?) s", said)
        assert said.startswith("Rank 1 holds everybody up") and age is not None, said
        assert AFTER_S <= float(age[1]) < AFTER_S + FOUND_S
        assert "Rank 0 waits in" in said and "waits for rank 1" in page.inner_text("#now .lanes")
        assert page.inner_text("#now .row.stuck").startswith("rl.reward parity")
        until(page, "document.querySelector('#now') && !document.querySelector('#now .row.stuck')")
        until(page, f"{STEPS} > 8")
        until(page, f"{STEPS} > 15")
        until(page, "document.querySelector('h1')?.textContent.includes('finished')")
        assert training.wait() == 0
    finally:
        training.terminate()
        training.wait()
    until(page, f"{STEPS} > 29 && {REWARDS} === 30")
    until(page, "document.querySelector('#now')?.hidden")
