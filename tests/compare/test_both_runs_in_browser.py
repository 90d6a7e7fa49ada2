"""The page of two runs in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from otel_rl import vocabulary as v
from otel_rl.compare.both_runs import to_html
from otel_rl.compare.comparing import compare_runs
from tests.compare.test_comparing import noisy
from tests.report.page.test_browser import CHROMIUM, OPTIONS

pytestmark = pytest.mark.browser


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_both_runs_are_in_the_figures(tmp_path: Path) -> None:
    """Nothing is loaded or complained of; a figure has the values of both; a deep link marks the step."""
    first, second = noisy(1), noisy(2, {v.SAMPLE: 1.5})
    file = tmp_path / "both.html"
    file.write_text(to_html(first, second, compare_runs(first, second)), "utf-8")
    requests: list[str] = []
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = browser.new_page()
        page.on("request", lambda one: requests.append(one.url))
        page.on("console", lambda one: complaints.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{file.as_uri()}#step=7")
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        assert "step 7" in page.locator("#selected output").inner_text()
        row = page.locator("#panel-differences tr", has_text="stage.rl.sample").first
        assert ("slower", 1) == (row.locator("td").last.inner_text(), row.locator("svg").count())
        page.locator("[id^=figure-stage-rl-sample-] figcaption button.table").click()
        cells = page.locator("[id^=figure-stage-rl-sample-] .numbers td").all_inner_texts()
        shown = {round(float(one), 3) for one in cells if one}
        browser.close()
    for rows in (first, second):
        assert round(1e3 * rows.course.steps.stages[v.SAMPLE][10], 3) in shown
    assert ([], []) == ([one for one in requests[1:] if not one.startswith("data:")], complaints)
