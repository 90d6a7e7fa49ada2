"""The page in a real Chromium: it loads nothing, complains of nothing, shows the numbers and answers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from otel_rl.journal.read import open_run
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import Course
from otel_rl.report.data.report import Report
from otel_rl.report.page.document import to_html
from tests.made_runs import BEGIN_NS, Plan, write_run
from tests.report.page.test_document import EVIL
from tests.report.page.test_samples import eight, sample, write_samples
from tests.report.test_stored_reports import recorded
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
NOW_NS = BEGIN_NS + 3_600_000_000_000
CHROMIUM = shutil.which("chromium")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PLACE = """([name, x, y]) => {
    const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name));
    const box = view.el.getBoundingClientRect();
    return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
}"""
"""Where in the window a point of a figure is."""
LINES = """(name) => Bokeh.documents[0].get_model_by_name(name).center
    .filter((one) => one.visible && ["here", "row"].includes(one.name)).map((one) => [one.name, one.location])"""
TEXTS = """() => {
    const texts = (node) => [...node.childNodes].flatMap((one) => one.nodeType === Node.TEXT_NODE ? [one.textContent]
        : [...(one.shadowRoot ? texts(one.shadowRoot) : []), ...texts(one)]);
    const found = (node) => [...node.querySelectorAll("*")].flatMap((one) =>
        [...(one.matches("[class*=Tooltip]") ? [one] : []), ...(one.shadowRoot ? found(one.shadowRoot) : [])]);
    return found(document).flatMap((one) => texts(one.shadowRoot ?? one));
}"""
"""The texts of tooltips, which are in shadow trees."""


@dataclass
class Opened:
    """A page in a browser, and what it did besides."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def hash(self) -> str:
        return str(self.page.evaluate("location.hash"))

    def go(self, hash: str) -> None:
        self.page.evaluate("(hash) => { location.hash = hash; }", hash)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")

    def click(self, figure: str, x: float, y: float) -> None:
        self.page.locator(f"#plot-{figure}").scroll_into_view_if_needed()
        self.page.mouse.click(*self.page.evaluate(PLACE, [figure, x, y]))

    def wait_for(self, condition: str) -> None:
        # here and not by playwright, which would wait in the page by a script that the page's policy forbids
        assert wait_for(lambda: self.page.evaluate(condition)), condition

    def table(self, figure: str) -> list[list[str]]:
        """Open the table of a figure, and return its cells."""
        self.page.locator(f"#figure-{figure} figcaption button.table").click()
        rows = self.page.locator(f"#figure-{figure} .numbers tr").all()
        return [row.locator("th, td").all_inner_texts() for row in rows]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Course]:
    return build_with_course(open_run(recorded(tmp_path_factory.mktemp("runs"), "trl_demo")), NOW_NS)


def complain(opened: Opened, said: ConsoleMessage) -> None:
    if said.type in ("error", "warning"):
        opened.complaints.append(said.text)


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Return what opens the page of a report; at the end none has asked for anything or complained."""
    opened: list[Opened] = []

    def show(
        report: Report, course: Course, hash: str = "", width: int = 1280, scheme: Any = "light", traces: str = ""
    ) -> Opened:
        file = tmp_path / f"{len(opened)}.html"
        file.write_text(to_html(report, course, traces), "utf-8")
        one = Opened(browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme))
        opened.append(one)
        one.page.on("request", lambda request: one.requests.append(request.url))
        one.page.on("console", partial(complain, one))
        one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
        one.page.goto(f"{file.as_uri()}{hash}")
        one.page.wait_for_selector("html[data-ready]", timeout=120_000)
        one.settle()
        return one

    yield show
    for one in opened:
        assert [url for url in one.requests if not url.startswith("data:")][1:] == []
        assert one.complaints == []
        one.page.close()


def test_figures_show_the_numbers_of_the_report(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    """Read back from the tables in the page."""
    report, course = trained
    opened = show(*trained)
    reward = next(one for one in report.series if one.name == "rl.reward.score")
    head, *rows = opened.table("reward")
    count = len(reward.values)
    assert head[:2] == ["step", "reward"]
    assert [float(row[0]) for row in rows[:count]] == reward.steps
    assert [float(row[1]) for row in rows[:count]] == pytest.approx(reward.values, rel=1e-5)
    head, *rows = opened.table("stages")
    assert head[3:] == [*list(course.steps.stages)[:9], "more stages", "all"]
    assert [1e-3 * float(row[3]) for row in rows] == pytest.approx(next(iter(course.steps.stages.values())), rel=1e-5)
    head, *rows = opened.table("rank-wait")
    assert head == ["rank 0", "rank 1"]
    waits = course.ranks.numbers["wait"].T.tolist()
    assert [[1e-3 * float(cell) for cell in row] for row in rows] == [pytest.approx(one, rel=1e-4) for one in waits]
    head, *rows = opened.table("goodput")
    shares = {part.kind: part.share for part in report.efficiency.goodput[-1].parts if part.time_ns}
    assert dict(zip(head, map(float, rows[0]), strict=True)) == pytest.approx(
        {kind: 100 * share for kind, share in shares.items()} | {"all": 100}, rel=1e-5
    )


def test_a_click_on_a_step_opens_its_timeline(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    """And marks it in every figure; a click on a span names it."""
    _, course = trained
    opened = show(*trained)
    chosen = course.spans[1]
    opened.click("stages", chosen.step, 1)
    opened.wait_for(f"location.hash === '#step={chosen.step}'")
    opened.wait_for(f"document.querySelector('#figure-timeline h3').textContent.startsWith('Step {chosen.step} took')")
    assert chosen.trace in opened.page.inner_text("#selected output")
    assert opened.page.evaluate(LINES, "stages") == [["here", chosen.step]]
    spans = opened.page.evaluate("Bokeh.documents[0].get_model_by_name('boxes').data")
    waits = opened.page.evaluate("Bokeh.documents[0].get_model_by_name('waits').data.id.length")
    assert len(spans["id"]) + waits == sum(len(lane.ids) for lane in chosen.lanes)
    longest = max(range(len(spans["id"])), key=lambda at: spans["right"][at] - spans["left"][at])
    x, y = ((spans[low][longest] + spans[high][longest]) / 2 for low, high in (("left", "right"), ("bottom", "top")))
    opened.click("timeline", x, y)
    opened.wait_for(f"location.hash.includes('span={spans['id'][longest]}')")
    assert spans["label"][longest] in opened.page.inner_text("#selected output")


def test_a_deep_link_marks_step_and_rank(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    """Figures that come into sight later are marked then."""
    opened = show(*trained, hash="#step=5&rank=1&figure=rank-wait")
    assert opened.page.locator("#figure-rank-wait").evaluate("(one) => one.classList.contains('here')")
    assert sorted(opened.page.evaluate(LINES, "rank-wait")) == [["here", 5], ["row", 0]]
    assert "step 5 · rank 1" in opened.page.inner_text("#selected output")
    opened.page.locator("#plot-reward").scroll_into_view_if_needed()
    opened.wait_for(f"({LINES})('reward').length === 1")
    opened.go("")
    assert opened.page.evaluate(LINES, "reward") == []
    assert not opened.page.is_visible("#selected")


def test_a_finding_leads_to_what_it_names(show: Callable[..., Opened], tmp_path: Path) -> None:
    """The slow rank is marked in the panel of ranks, the step without a loss in the loss."""
    plan = Plan(ranks=4, slow_rank=2, steps=20, nan_loss_step=7)
    opened = show(*build_with_course(open_run(write_run(tmp_path, plan)), NOW_NS))
    opened.page.get_by_text("Rank 2 is slower").first.click()
    opened.settle()
    assert ["row", 1] in opened.page.evaluate(LINES, "rank-excess")
    assert opened.page.locator("#figure-rank-excess.here").count() == 1
    boxes = opened.page.evaluate("Bokeh.documents[0].get_model_by_name('boxes').data")
    assert {label for label, alpha in zip(boxes["label"], boxes["alpha"], strict=True) if alpha == 1} == {
        "rl.reward", "rl.reward parity",
    }  # fmt: skip
    opened.page.get_by_text("Loss was NaN").first.click()
    opened.settle()
    assert opened.page.evaluate(LINES, "loss") == [["here", 7]]
    assert opened.page.locator("#figure-loss .marks").inner_text().startswith("step 7: Loss was NaN")


def test_keys_and_words_move_about(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    opened = show(*trained, hash="#step=5")
    opened.page.keyboard.press("ArrowRight")
    opened.wait_for("location.hash === '#step=6'")
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("rank 1")
    opened.page.keyboard.press("Enter")
    opened.wait_for("location.hash.includes('rank=1')")
    opened.page.keyboard.press("Escape")
    opened.wait_for("location.hash === ''")
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("no such thing")
    opened.page.keyboard.press("Enter")
    assert opened.hash == "" and opened.page.locator("input:invalid").count() == 1


def test_a_zoom_is_one_of_all_steps(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    """Drawn in one figure, undone by a key."""
    opened = show(*trained)
    opened.page.locator("#plot-stages").scroll_into_view_if_needed()
    left, right = (opened.page.evaluate(PLACE, ["stages", step, 1]) for step in (10, 20))
    opened.page.mouse.move(*left)
    opened.page.mouse.down()
    opened.page.mouse.move(*right, steps=8)
    opened.page.mouse.up()
    opened.wait_for("Bokeh.documents[0].get_model_by_name('steps').end < 25")
    start = opened.page.evaluate("Bokeh.documents[0].get_model_by_name('reward').x_range.start")
    assert start == pytest.approx(10, abs=0.5)
    opened.page.keyboard.press("0")
    opened.wait_for("Bokeh.documents[0].get_model_by_name('steps').start === 0.5")


def test_a_name_with_markup_is_shown_as_it_is(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    """In texts, legends, tables and tooltips; nothing of it runs."""
    report, course = trained
    series = [replace(one, qualifiers={**one.qualifiers, "rl.reward.function": EVIL}) for one in report.series]
    lanes = [replace(one, labels=[EVIL] * len(one.labels)) for one in course.spans[0].lanes]
    course = replace(course, spans=[replace(course.spans[0], lanes=lanes)])
    opened = show(replace(report, run=EVIL, series=series), course)
    opened.page.evaluate("() => { window.alert = () => { throw new Error('markup ran'); }; }")
    assert opened.page.inner_text("h1").startswith(EVIL)
    assert EVIL in opened.page.inner_text("#figure-reward .legend")
    assert opened.page.locator("img").count() == 0
    opened.page.locator("#plot-reward").scroll_into_view_if_needed()
    step = report.series[0].steps[3]
    opened.page.mouse.move(*opened.page.evaluate(PLACE, ["reward", step, report.series[0].values[3]]), steps=4)
    opened.wait_for(f"({TEXTS})().some((one) => one.includes('alert(1)'))")
    assert any("<script>" in one for one in opened.page.evaluate(TEXTS))
    cells = [cell for row in opened.table("timeline") for cell in row]
    assert EVIL in cells


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_it_fits_into_the_window(
    show: Callable[..., Opened], trained: tuple[Report, Course], width: int, scheme: str
) -> None:
    """Nothing is cut off, and the ground is that of the system."""
    opened = show(*trained, width=width, scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 600) == (scheme == "light")
    figures = opened.page.locator(".plot > *")
    widths = figures.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().width)")
    assert len(widths) == len(opened.page.locator(".plot").all()) and min(widths) >= 200


def test_a_step_opens_its_samples(show: Callable[..., Opened], tmp_path: Path) -> None:
    """Or those of the last step before it that sampled; its texts are folded, and are no markup."""
    texts = [sample(11, number, response=EVIL) for number in range(4)]
    opened = show(*build_with_course(open_run(write_samples(tmp_path, {1: eight(1), 11: texts})), NOW_NS))
    opened.go("panel=samples&step=12")
    assert opened.page.locator("#samples-11").get_attribute("open") is not None
    assert opened.page.locator("#samples-1").get_attribute("open") is None
    assert "11.3" in opened.page.inner_text("#samples-11 table")
    text = opened.page.locator("#samples-11 pre").first
    assert not text.is_visible()
    opened.page.get_by_text("Texts of group 11.0").click()
    opened.page.get_by_text("answer of sample 11.0").click()
    assert text.inner_text() == EVIL


def test_the_trace_of_a_step_has_a_link(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    """Where traces can be looked at; nothing is asked for there before somebody clicks."""
    _, course = trained
    one = course.spans[0]
    opened = show(*trained, hash=f"#step={one.step}", traces="http://127.0.0.1:1/ui")
    link = opened.page.locator("#selected a")
    assert link.get_attribute("href") == f"http://127.0.0.1:1/ui/trace/{one.trace}"
    assert link.is_visible()
    opened.go("step=1000")
    assert not link.is_visible()


def test_arrows_begin_and_end_at_spans(show: Callable[..., Opened], trained: tuple[Report, Course]) -> None:
    """Of step 6, whose rollout is of the step before: from the left edge to the first forward."""
    opened = show(*trained, hash="#step=6")
    arrows = opened.page.evaluate("Bokeh.documents[0].get_model_by_name('arrows').data")
    assert arrows["label"] == ["trains on what step 5 sampled"] * 2 and arrows["x0"] == [0, 0]
    boxes = opened.page.evaluate("Bokeh.documents[0].get_model_by_name('boxes').data")
    for x, y in zip(arrows["x1"], arrows["y1"], strict=True):
        (label,) = [
            label
            for label, left, low, high in zip(boxes["label"], boxes["left"], boxes["bottom"], boxes["top"], strict=True)
            if left == x and low < y < high
        ]
        assert label == "rl.train.forward"


def test_a_page_without_figures_works(show: Callable[..., Opened], tmp_path: Path) -> None:
    """Of a run that has no step and no goodput; keys do no harm."""
    report, course = build_with_course(open_run(write_run(tmp_path, Plan(steps=0, metrics=False))), NOW_NS)
    report = replace(report, efficiency=replace(report.efficiency, goodput=[]))
    opened = show(report, course, hash="#step=3&rank=1&figure=none")
    assert opened.page.locator("figure").count() == 0
    for key in ("ArrowRight", "j", "0", "Escape"):
        opened.page.keyboard.press(key)
    opened.settle()
    assert report.findings.time[0].sentence in opened.page.inner_text("#findings")
