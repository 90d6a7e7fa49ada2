"""Pieces of a page: what a browser is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from otel_rl.report.page.document import PageParts
from otel_rl.view.pieces import Pieces


def model(name: str, kind: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "object", "name": kind, "id": name, "attributes": attributes}


def plot(*marks: int, values: list[int], kind: str = "Line") -> PageParts:
    line = model("p.2", kind, data={"type": "map", "entries": [["y", values]]})
    center = [model(f"p.{3 + place}", "Span", location=step) for place, step in enumerate(marks)]
    root = model("p.1", "Figure", renderers=[line], center=center)
    body = {"head": "<header id=head></header>", "panel-steps": f"<section>{values}</section>"}
    return PageParts("run", body, {"document": {"roots": [root]}, "places": {"p.1": "plot-p"}, "first": values[0]})


def test_only_what_changed_is_sent() -> None:
    """A model's attribute, a part of the body, a value of the data; nothing to whom has the newest version."""
    pieces = Pieces()
    pieces.update(plot(values=[1, 2]))
    pieces.update(plot(values=[1, 3]))
    state = pieces.since(1)
    assert state["html"] == {"panel-steps": "<section>[1, 3]</section>"}
    new = {"type": "map", "entries": [["y", [1, 3]]]}
    assert state["events"] == [{"kind": "ModelChanged", "model": {"id": "p.2"}, "attr": "data", "new": new}]
    assert state["data"] == {}
    assert pieces.since(2) | {"epoch": ""} == {
        "epoch": "", "version": 2, "html": {}, "events": [], "data": {}, "timelines": [],
    }  # fmt: skip


def test_a_model_that_is_new_to_a_browser_is_sent_whole() -> None:
    """Once it is known, by its id."""
    pieces = Pieces()
    pieces.update(plot(values=[1]))
    pieces.update(plot(7, values=[1]))
    (event,) = pieces.since(1)["events"]
    assert event["attr"] == "center" and event["new"] == [model("p.3", "Span", location=7)]
    pieces.update(plot(7, 9, values=[1]))
    (event,) = pieces.since(2)["events"]
    assert event["new"] == [{"id": "p.3"}, model("p.4", "Span", location=9)]


def test_another_structure_is_another_epoch() -> None:
    """Another kind of model, or another panel; the browser loads the page anew."""
    pieces = Pieces()
    pieces.update(plot(values=[1]))
    first = pieces.epoch
    pieces.update(plot(values=[1], kind="Quad"))
    second = pieces.epoch
    whole = plot(values=[1], kind="Quad")
    pieces.update(replace(whole, body={**whole.body, "panel-memory": "<section></section>"}))
    assert len({first, second, pieces.epoch}) == 3 and pieces.version == 3


def test_a_part_of_a_page_leaves_the_remainder() -> None:
    """A figure that is newer than its panel comes after it, and before it once the panel is newer."""
    pieces = Pieces()
    pieces.update(plot(values=[1]))
    pieces.update(PageParts("run", {"figure-p": "<figure>2</figure>"}, {}), is_whole=False)
    assert pieces.since(0)["epoch"] == pieces.epoch
    assert list(pieces.since(0)["html"]) == ["head", "panel-steps", "figure-p"]
    pieces.update(plot(values=[3]))
    assert list(pieces.since(0)["html"]) == ["head", "figure-p", "panel-steps"]


def test_a_part_of_another_structure_is_ignored() -> None:
    """A whole page shows it later."""
    pieces = Pieces()
    pieces.update(plot(values=[1]))
    epoch = pieces.epoch
    pieces.update(plot(values=[2], kind="Quad"), is_whole=False)
    assert (pieces.epoch, pieces.version) == (epoch, 1)


def test_timelines_that_are_gone_are_forgotten() -> None:
    pieces = Pieces()
    parts = plot(values=[1])
    for steps in ([1, 2], [2, 3]):
        timelines = [{"attempt": "a", "step": step, "lanes": []} for step in steps]
        pieces.update(replace(parts, data={**parts.data, "timelines": timelines}))
    assert [one["step"] for one in pieces.since(1)["timelines"]] == [3]
    assert sorted(one["step"] for one in pieces.since(0)["timelines"]) == [2, 3]
