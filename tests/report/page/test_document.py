"""The page as a file: nothing is loaded, nothing of a run is markup, and the models are those of Bokeh."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import bokeh.models  # the models that a document is read with
import pytest
from bokeh.document import Document
from bokeh.plotting import figure as bokeh_figure
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import Course
from otel_rl.report.data.report import Report
from otel_rl.report.page import document
from otel_rl.report.page.document import to_html
from tests.made_runs import BEGIN_NS, Plan, write_run
from tests.report.test_stored_reports import recorded

NOW_NS = BEGIN_NS + 3_600_000_000_000
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
ADDRESS = re.compile(r"\b(?:src|href|action|data)\s*=\s*[\"']?(?!#)", re.IGNORECASE)


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the texts of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts and not self.scripts[-1]:
            self.scripts[-1] = data
        else:
            self.text.append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Course]:
    return build_with_course(open_run(recorded(tmp_path_factory.mktemp("runs"), "trl_demo")), NOW_NS)


@pytest.fixture(scope="module")
def page(trained: tuple[Report, Course]) -> str:
    return to_html(*trained)


def test_only_its_own_scripts_may_run(page: str) -> None:
    """The policy names each by its hash, and allows no address."""
    found = Tags(page)
    (policy,) = [of["content"] for tag, of in found.tags if of.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found.scripts[1:]]
    assert len(hashes) == 2
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy and "unsafe-eval" not in policy
    assert len(page) < 3_000_000


def test_it_loads_nothing(page: str) -> None:
    """Links lead into the page; no tag has an address."""
    found = Tags(page)
    assert {tag for tag, _ in found.tags} & {"link", "img", "iframe", "object", "embed", "base"} == set()
    for _, of in found.tags:
        assert "src" not in of and not any(key.startswith("on") for key in of)
        assert (of.get("href") or "#").startswith("#")
    assert "url(" not in document.own_file("page.css") and "http" not in document.own_file("page.js")


def test_names_of_a_run_are_text(trained: tuple[Report, Course]) -> None:
    """Of a run, a reward function, a stage, a span and a rank's role; also one of a million characters."""
    report, course = trained
    series = [replace(one, qualifiers={**one.qualifiers, "rl.reward.function": EVIL}) for one in report.series]
    numbers = [replace(report.series[0], name=EVIL * 20_000)]
    stages = [replace(one, stage=EVIL) for one in report.stages]
    steps = replace(course.steps, stages={EVIL: course.steps.time_s, "x" * 1_000_000: course.steps.time_s})
    ranks = [replace(one, role=EVIL) for one in course.ranks.ranks]
    lanes = [replace(one, role=EVIL, labels=[EVIL] * len(one.labels)) for one in course.spans[0].lanes]
    finding = replace(report.findings.learn[0], sentence=EVIL, advice=EVIL)
    findings = replace(report.findings, learn=[finding])
    evil = replace(report, run=EVIL, model=EVIL, series=series, numbers=numbers, stages=stages, findings=findings)
    bad = replace(
        course, steps=steps, ranks=replace(course.ranks, ranks=ranks), spans=[replace(course.spans[0], lanes=lanes)]
    )
    plain, found = Tags(to_html(report, course)), Tags(to_html(evil, bad))
    assert {tag for tag, _ in found.tags} == {tag for tag, _ in plain.tags}
    assert len(found.scripts) == 3 and found.scripts[1:] == plain.scripts[1:]
    assert EVIL in "".join(found.text)
    assert not any(key.startswith("on") for _, of in found.tags for key in of)
    assert found.data["timelines"][0]["texts"] == [EVIL]
    assert len(to_html(evil, bad)) < 4_000_000


def test_bokeh_reads_the_models(page: str) -> None:
    """It knows each of them and all of their attributes."""
    data = Tags(page).data
    read = Document.from_json(data["document"])
    plots = {plot.name: plot for plot in read.roots}
    assert {f"plot-{name}" for name in plots} == set(data["places"].values())
    assert all(type(plot) is bokeh_figure for plot in plots.values())
    assert plots["reward"].x_range is plots["rank-wait"].x_range is read.get_model_by_name("steps")
    lines = [one for one in plots["reward"].renderers if isinstance(one.glyph, bokeh.models.Line)]
    assert len({id(one.data_source) for one in lines}) == 3


def test_drawn_numbers_are_those_of_the_report(trained: tuple[Report, Course], page: str) -> None:
    """In the unit of the axis."""
    report, course = trained
    read = Document.from_json(Tags(page).data["document"])
    plots = {plot.name: plot for plot in read.roots}
    reward = next(one for one in report.series if one.name == "rl.reward.score")
    source = plots["reward"].renderers[0].data_source
    assert source.data["value"].tolist() == reward.values and source.data["step"].tolist() == reward.steps
    stack = plots["stages"].renderers[0].data_source
    by = {"ms": 1e-3, "s": 1.0}[plots["stages"].yaxis.axis_label.rpartition(", ")[2]]
    first = next(iter(course.steps.stages.values()))
    assert stack.data["part0"] * by == pytest.approx(first)
    image = plots["rank-active"].renderers[0].data_source.data["image"][0]
    assert image[::-1].mean(axis=1) * by == pytest.approx(course.ranks.numbers["active"].mean(axis=1), rel=1e-5)


def test_every_finding_is_at_the_top_with_its_advice(tmp_path: Path) -> None:
    plan = Plan(steps=20, nan_loss_step=7, dropped=5)
    report, course = build_with_course(open_run(write_run(tmp_path, plan)), NOW_NS)
    text = " ".join("".join(Tags(to_html(report, course)).text).split())
    found = [*report.findings.time, *report.findings.learn, *report.findings.health]
    for one in found:
        assert one.sentence in text
        assert not one.advice or f"Next: {one.advice}" in text
    worst_first = sorted(found, key=lambda one: ("alarm", "warning", "note").index(one.severity))
    assert worst_first != found
    assert worst_first == sorted(found, key=lambda one: text.index(one.sentence))
    assert text.index(found[0].sentence) < text.index("Reward rises")


def test_a_run_without_steps_has_a_page(tmp_path: Path) -> None:
    """With what can be said of it, and no figure."""
    report, course = build_with_course(open_run(write_run(tmp_path, Plan(steps=0, metrics=False))), NOW_NS)
    found = Tags(to_html(report, course))
    assert report.findings.time[0].sentence in "".join(found.text)
    assert "timeline" not in found.data["places"].values()


@pytest.mark.guarded
def test_a_panel_that_fails_costs_only_itself(trained: tuple[Report, Course]) -> None:
    """The page says that it is missing."""
    report, course = trained
    broken = replace(course, ranks=replace(course.ranks, numbers=None))
    page = to_html(report, broken)
    found = Tags(page)
    assert "1 section could not be made (Ranks)" in "".join(found.text)
    assert {"reward", "stages", "goodput"} <= {name.removeprefix("plot-") for name in found.data["places"].values()}
    assert "rank-active" not in page.partition("application/json")[0]


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path, Plan())
    file = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(run), "--html", str(file)])
    assert done.exit_code == 0, done.output
    assert file.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert done.stdout == "" and "opens in a browser" in done.stderr


def test_the_command_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "is_drawable", lambda: False)
    done = CliRunner().invoke(app, ["report", str(write_run(tmp_path, Plan())), "--html", str(tmp_path / "page.html")])
    assert done.exit_code == 1
    assert done.stderr == "otel-rl: --html needs Bokeh: pip install 'otel-rl[view]'\n"
    assert not (tmp_path / "page.html").exists()


def test_the_command_says_why_it_cannot_write(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["report", str(write_run(tmp_path, Plan())), "--html", str(tmp_path / "no" / "page")]
    )
    assert done.exit_code == 1
    assert "cannot write" in done.stderr and "No such file or directory" in done.stderr


@pytest.mark.parametrize("other", ["--json", "--live", "--format=markdown"])
def test_a_page_is_the_only_output(tmp_path: Path, other: str) -> None:
    done = CliRunner().invoke(
        app, ["report", str(write_run(tmp_path, Plan())), "--html", str(tmp_path / "page"), other]
    )
    assert done.exit_code == 2
