"""The whole page as one HTML file: nothing in it is loaded from elsewhere, and only its own scripts may run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Final

from otel_rl.report.data.course import Course
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.report import Report
from otel_rl.report.findings.unmade import Making
from otel_rl.report.page.blocks import html_of, lines_of, marked, safe
from otel_rl.report.page.bokeh_models import library
from otel_rl.report.page.draw import draw
from otel_rl.report.page.figure import Bars, Curves, Figure, Foldout, Foldouts, Heat, Panel, Stack, Timelines
from otel_rl.report.page.palette import colour_of, colours
from otel_rl.report.page.panels import Evidence, PageContent, make_page
from otel_rl.report.screen import counted
from otel_rl.report.section import rank_name
from otel_rl.report.sections.header import HEADER
from otel_rl.report.sections.three_findings import SEVERITIES
from otel_rl.runs.format import printable, shorten

KINDS: Final = {"time": "Time", "learn": "Learn", "health": "Health"}
LONGEST_NAME: Final = 200
PLACE: Final = "{trace_id}"
FEW_ROWS: Final = 8
"""A heatmap of more rows takes the whole width."""


def is_drawable() -> bool:
    """Return whether the packages of ``otel-rl[view]`` are there."""
    return find_spec("bokeh") is not None


@dataclass(frozen=True, slots=True)
class PageParts:
    """A page before it is written: parts of its body by their element, and what its script reads."""

    title: str
    body: Mapping[str, str]
    data: Mapping[str, Any]


def to_html(report: Report, course: Course, traces_url: str = "") -> str:
    """Write a report as one HTML document.

    Args:
        report: what is shown.
        course: how the run went from step to step.
        traces_url: where traces can be looked at, as `OTEL_RL_TRACES_URL` says it; empty for nowhere.
    """
    making = Making()
    return write_page(parts_of(report, make_page(report, course, making), making, traces_url))


def parts_of(report: Report, page: PageContent, making: Making, traces_url: str = "") -> PageParts:
    """Return the parts of a page."""
    document, places = draw([figure for panel in page.panels for figure in panel.figures])
    unmade = [*report.unmade, *making.unmade]
    said = f'<p class="warning">{safe(counted(unmade))}</p>' if unmade else ""
    body = {
        "head": _head(report),
        "panel-links": _links(page),
        "findings": _findings(page),
        "unmade": f'<div id="unmade">{said}</div>',
        **{f"panel-{one.name}": _panel(one, report, traces_url) for one in page.panels},
    }
    data = {"document": document, "places": places, "traces": trace_link(traces_url, ""), **_data(report, page)}
    return PageParts(report.run, body, data)


def parts_of_figures(run: str, figures: Sequence[Figure]) -> PageParts:
    """Return the parts of some figures of a page."""
    document, places = draw(figures)
    return PageParts(
        run, {f"figure-{one.name}": _figure(one) for one in figures}, {"document": document, "places": places}
    )


def write_page(parts: PageParts, *, live: str = "", live_script: str = "") -> str:
    """Write a page as one HTML document; a live one has more in its body, and a script that asks its server."""
    scripts = [library(), own_file("page.js"), *filter(None, [live_script])]
    body = [
        *parts.body.values(),
        f'<aside id="selected" hidden><output></output><button type="button">copy</button>{_link("")}</aside>',
        live,
        f'<script type="application/json" id="data">{to_script(parts.data)}</script>',
    ]
    return write_document(parts.title, body, scripts, is_live=bool(live_script))


def write_document(title: str, body: Sequence[str], scripts: Sequence[str], *, is_live: bool) -> str:
    """Write a document in the style of the page, in which only these scripts run."""
    title = safe(f"{title} · otel_rl")
    run = "\n".join(f"<script>{one}</script>" for one in scripts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, is_live=is_live)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>{own_file('page.css')}</style></head><body>\n{chr(10).join(body)}\n{run}\n</body></html>\n"
    )


def own_file(name: str) -> str:
    """Return a script or a style of the page."""
    return files(__package__).joinpath(name).read_text("utf-8")


def _policy(scripts: Sequence[str], *, is_live: bool) -> str:
    """Allow these scripts and no other, styles in the file, and no address; to a live page that of its server."""
    hashes = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        + "connect-src 'self'; " * is_live
        + "base-uri 'none'; form-action 'none'"
    )


def to_script(data: Any) -> str:
    """Write JSON that no text in it can end or turn into markup."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _head(report: Report) -> str:
    return (
        f'<header id="head">{html_of(HEADER.blocks(report))}'
        '<form role="search"><label>Go to <input name="to" placeholder="step 17, rank 3, a stage" autocomplete="off">'
        '</label><button type="button" id="whole">whole run</button>'
        "<small>keys: ← → step, j k panel, / go to, 0 whole run, Esc nothing chosen</small></form></header>"
    )


def _links(page: PageContent) -> str:
    links = "".join(f'<a href="#panel={one.name}">{safe(one.label)}</a>' for one in page.panels)
    return f'<nav id="panel-links">{links}</nav>'


def _findings(page: PageContent) -> str:
    worst_first = sorted(page.evidence, key=lambda one: [*SEVERITIES].index(one[0].severity))
    items = [_finding(finding, where) for finding, where in worst_first]
    return f'<section id="findings"><h2>Findings</h2><dl>{"".join(items)}</dl></section>'


def _finding(finding: Finding, where: Evidence) -> str:
    sentence = marked(finding.sentence, SEVERITIES[finding.severity])
    link = f'<a href="#{safe(where.link)}">{sentence}</a>' if where.panel else sentence
    advice = f' <span class="advice">Next: {safe(finding.advice)}</span>' if finding.advice else ""
    return f'<div class="finding {finding.severity}"><dt>{KINDS[finding.kind]}</dt><dd>{link}{advice}</dd></div>'


def _panel(panel: Panel, report: Report, traces_url: str) -> str:
    figures = "".join(map(_figure, panel.figures))
    tables = "".join(
        (f"<h3>{safe(one.title)}</h3>" if one.title else "") + html_of(one.blocks(report)) for one in panel.sections
    )
    if tables and panel.figures:
        tables = f"<details><summary>Numbers</summary>{tables}</details>"
    label = f'<p class="label">{safe(panel.label)}</p>' if panel.title != panel.label else ""
    return (
        f'<section id="panel-{panel.name}" class="panel">{label}<h2>{safe(panel.title)}</h2>'
        f'<div class="figures">{figures}</div>{_folds(panel.folds, traces_url)}{tables}</section>'
    )


def _folds(folds: Foldouts | None, traces_url: str) -> str:
    if folds is None:
        return ""
    return html_of(folds.blocks) + "".join(_fold(one, traces_url) for one in folds.folds)


def _fold(fold: Foldout, traces_url: str) -> str:
    name = f' id="{safe(fold.name)}"' if fold.name else ""
    link = _link(trace_link(traces_url, fold.trace)) if traces_url else ""
    trace = f'<p class="note">trace {safe(fold.trace)} {link}</p>' if fold.trace else ""
    text = f"<pre>{lines_of(fold.text)}</pre>" if fold.text else ""
    inner = "".join(_fold(one, traces_url) for one in fold.inner)
    return f"<details{name}><summary>{safe(fold.title)}</summary>{trace}{html_of(fold.blocks)}{inner}{text}</details>"


def trace_link(traces_url: str, trace: str) -> str:
    """Return the address of a trace; for no trace that which one of any is made of; empty for nowhere."""
    if not traces_url:
        return ""
    place = traces_url if PLACE in traces_url else f"{traces_url.rstrip('/')}/trace/{PLACE}"
    return place.replace(PLACE, trace) if trace else place


def _link(address: str) -> str:
    hidden = "" if address else " hidden"
    return f'<a href="{safe(address) or "#"}" target="_blank" rel="noopener noreferrer"{hidden}>open the trace</a>'


def _figure(figure: Figure) -> str:
    marks = "".join(
        f"<li>{marked(f'step {one.step}', SEVERITIES[one.severity])}: {safe(one.text)}</li>" for one in figure.marks
    )
    wide = ' class="wide-figure"' if _is_wide(figure) else ""
    before = '<div id="steps-shown" role="group" aria-label="step"></div>' if _is_timeline(figure) else ""
    return (
        f'<figure id="figure-{figure.name}"{wide}><h3>{safe(figure.title)}</h3>{before}'
        f'<div class="plot" id="plot-{figure.name}"></div>{_legend(figure)}'
        f"{f'<ul class=marks>{marks}</ul>' if marks else ''}"
        f'<figcaption>{safe(figure.caption)} <button type="button" class="table">table</button></figcaption></figure>'
    )


def _is_wide(figure: Figure) -> bool:
    content = figure.content
    return not isinstance(content, Curves) and not (isinstance(content, Heat) and len(content.rows) <= FEW_ROWS)


def _is_timeline(figure: Figure) -> bool:
    return isinstance(figure.content, Timelines)


def _legend(figure: Figure) -> str:
    content = figure.content
    if isinstance(content, Curves):
        labels = [one.label for one in content.curves]
        shown = list(zip(labels, colours(len(labels)), strict=True)) if len(labels) > 1 else []
    elif isinstance(content, Stack | Bars):
        shown = [(label, colour_of(label)) for label in content.parts]
    else:
        return '<ul class="legend"></ul>' if _is_timeline(figure) else ""
    items = "".join(f'<li><i style="background:{colour}"></i>{safe(label)}</li>' for label, colour in shown)
    return f'<ul class="legend">{items}</ul>' if items else ""


def _data(report: Report, page: PageContent) -> dict[str, Any]:
    """Return what the page's own script needs: timelines, and the names of ranks."""
    figures = [figure for panel in page.panels for figure in panel.figures]
    content = next((one.content for one in figures if isinstance(one.content, Timelines)), None)
    return {
        "ranks": [{"role": one.role, "rank": one.rank, "name": rank_name(report, one)} for one in report.ranks],
        "first": content.first if content else None,
        "kept": sorted(one.step for one in content.steps) if content else [],
        "timelines": [_timeline(report, one) for one in content.steps] if content else [],
        "colours": {stage: colour_of(stage) for stage in _stages(content)},
        "panels": [one.name for one in page.panels],
    }


def _stages(content: Timelines | None) -> set[str]:
    steps = content.steps if content else ()
    return {_short(label) for one in steps for lane in one.lanes for label in lane.labels}


def _short(label: str) -> str:
    return shorten(printable(label), LONGEST_NAME)


def _timeline(report: Report, step: Any) -> dict[str, Any]:
    """Return a step with its lanes as columns; times in microseconds, texts as numbers."""
    texts: dict[str, int] = {}
    lanes = []
    for lane in step.lanes:
        labels = [texts.setdefault(_short(one), len(texts)) for one in lane.labels]
        lanes.append({
            "role": lane.role,
            "rank": lane.rank,
            "name": rank_name(report, lane),
            "begin": [round(one / 1e3) for one in lane.begin_ns],
            "end": [round(one / 1e3) for one in lane.end_ns],
            "level": list(lane.level),
            "label": labels,
            "wait": [int(one) for one in lane.is_wait],
            "id": list(lane.ids),
        })  # fmt: skip
    head = {
        "step": step.step,
        "why": step.why,
        "trace": step.trace,
        "attempt": step.attempt,
        "time_s": step.time_ns / 1e9,
    }
    arrows = [
        {"label": _short(one.label), "begin": one.begin, "end": one.end, "taken": one.is_taken} for one in step.arrows
    ]
    return {**head, "texts": list(texts), "lanes": lanes, "arrows": arrows}
