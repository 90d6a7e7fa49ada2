"""Figures as models of Bokeh."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from otel_rl.report.page.bokeh_models import ByRow, Document, Fixed, Model, renderer, source
from otel_rl.report.page.figure import Bars, Curves, Figure, Heat, Stack, Timelines, Unit
from otel_rl.report.page.palette import CHOSEN, CIVIDIS, GREY, ORANGE, VERMILLION, colour_of, colours
from otel_rl.runs.format import printable, shorten

SCALES: Final[Mapping[Unit, tuple[tuple[float, str], ...]]] = {
    "s": ((1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")),
    "By": ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB")),
    "1": ((0.01, "%"),),
    "token": ((1.0, "tokens"),),
}
"""What a number is divided by, and the unit that it has then."""
MINUTE: Final = 60.0
LONG: Final = 10
"""Fewer minutes or hours than these are written as seconds or minutes."""
MARKS: Final = {"alarm": VERMILLION, "warning": ORANGE, "note": GREY}
BOXES: Final = ("left", "right", "bottom", "top", "colour", "alpha", "label", "time", "lane", "id")
ARROWS: Final = ("x0", "y0", "x1", "y1", "label")
LONGEST: Final = 60
MOST_TICKS: Final = 24
SATURATED: Final = 0.98
"""The quantile of a heatmap's values that has its last colour: a first step of set-up would hide the others."""
MANY_POINTS: Final = 60
SHORT: Final = 16
"""Longest label that fits beside an axis."""
SOFT: Final = "#7d8791"
"""Of the texts to which the page has no say; readable on light and on dark ground."""
SMALL: Final = {"axis_label_text_font_size": "11px", "major_label_text_font_size": "11px"}
PLAIN: Final = {"axis_label_text_font_style": "normal", "minor_tick_line_color": None}
Drawn = tuple[list[Model], list[Model]]
"""What draws, and what tells the numbers."""


def draw(figures: Sequence[Figure]) -> tuple[Any, dict[str, str]]:
    """Make a document, as JSON, and the element of each of its roots."""
    drawer, document = _Drawer(figures), Document()
    plots = [drawer.plot(one) for one in figures]
    made = document.to_json(plots)
    return made, {document.id_of(plot): f"plot-{one.name}" for plot, one in zip(plots, figures, strict=True)}


def scale(unit: Unit, values: Any) -> tuple[float, str]:
    """Return what numbers are divided by so that the largest is easy to read, and their unit then."""
    known = SCALES.get(unit)
    if known is None:
        return 1.0, ""
    array = np.abs(np.asarray(values, np.float64))
    highest = float(np.max(array[np.isfinite(array)], initial=0.0))
    large = [one for one in known if highest >= one[0] * (LONG if one[0] >= MINUTE else 1)]
    return large[-1] if large else known[0]


def text(label: str) -> str:
    """Return a name as it is shown in a figure, where it is text and not markup."""
    return shorten(printable(label), LONGEST)


class _Plot:
    """What a figure is made of."""

    def __init__(self, figure: Figure, x_range: Model) -> None:
        self.figure = figure
        self.x_range, self.y_range = x_range, Model("DataRange1d")
        self.height = 170
        self.x_label, self.y_label = figure.x.label, ""
        self.y_ticks: dict[str, Any] = {}
        self.renderers: list[Model] = []
        self.tools: list[Model] = []
        self.center: list[Model] = []
        self.right: list[Model] = []

    def add(self, kind: str, of: Model, **attributes: Any) -> Model:
        drawn = renderer(Model(kind, **attributes), of)
        self.renderers.append(drawn)
        return drawn

    def tell(self, drawn: Model, tips: Sequence[tuple[str, str]], **attributes: Any) -> None:
        self.tools.append(Model("HoverTool", renderers=[drawn], tooltips=list(tips), **attributes))

    def label_y(self, unit: str) -> None:
        label = self.figure.y.label if len(self.figure.y.label) <= SHORT else ""
        self.y_label = ", ".join(filter(None, (label if label != unit else "", unit)))

    def rows(self, names: Sequence[str]) -> None:
        """Write names of rows beside the axis, the first on top; of many only some."""
        count = len(names)
        shown = sorted(range(count - 1, -1, -math.ceil(count / MOST_TICKS)))
        self.y_range = Model("Range1d", start=-0.5, end=count - 0.5)
        self.y_ticks = {
            "ticker": Model("FixedTicker", ticks=shown, minor_ticks=[]),
            "major_label_overrides": {one: text(names[count - 1 - one]) for one in shown},
        }

    def made(self, *, is_step: bool, has_grid: bool) -> Model:
        zoom = Model("BoxZoomTool", dimensions="width")
        wheel = Model("WheelZoomTool", dimensions="width", modifiers={"ctrl": True})
        self.tools += [zoom, Model("PanTool", dimensions="width"), wheel]
        whole = {"min_interval": 1} if is_step else {}
        form = Model("NumeralTickFormatter", format="0,0") if is_step else Model("BasicTickFormatter")
        below = _axis(
            ticker=Model("BasicTicker", mantissas=[1, 2, 5], **whole),
            formatter=form,
            axis_label=self.x_label,
            name=f"{self.figure.name}-x",
        )
        left = _axis(
            **{"ticker": Model("BasicTicker", mantissas=[1, 2, 5], desired_num_ticks=4), **self.y_ticks},
            formatter=Model("BasicTickFormatter"), axis_label=self.y_label,
        )  # fmt: skip
        grid = [Model("Grid", dimension=1, axis=left, level="underlay")] if has_grid else []
        return Model(
            "Figure", name=self.figure.name, height=self.height, min_width=200, sizing_mode="stretch_width",
            x_range=self.x_range, y_range=self.y_range, x_scale=Model("LinearScale"), y_scale=Model("LinearScale"),
            renderers=self.renderers, toolbar=Model("Toolbar", tools=self.tools, active_drag=zoom),
            toolbar_location=None, left=[left], below=[below], right=self.right,
            background_fill_alpha=0, border_fill_alpha=0, outline_line_color=None, min_border_right=8,
            center=[*grid, *self.center],  # last: how many marks there are changes the id of nothing else
        )  # fmt: skip


def _axis(**attributes: Any) -> Model:
    return Model("LinearAxis", major_label_policy=Model("NoOverlap"), **SMALL, **PLAIN, **attributes)


class _Drawer:
    """Draws figures whose steps are linked."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        low, high = _steps(figures)
        self.steps = Model("Range1d", name="steps", start=low, end=high, bounds=[low, high], min_interval=1)

        self.steps.shared = "steps"

    def plot(self, figure: Figure) -> Model:
        is_step = figure.x.unit == "step"
        plot = _Plot(figure, self.steps if is_step else Model("Range1d", start=0, end=100))
        make: dict[type, Callable[[_Plot, Any], None]] = {
            Curves: _curves, Stack: _stack, Heat: self._heat, Bars: _bars, Timelines: _timelines,
        }  # fmt: skip
        make[type(figure.content)](plot, figure.content)
        if is_step:
            plot.center.append(_line("here", "height"))
            plot.center += [
                Model("Span", location=one.step, dimension="height", line_color=MARKS[one.severity],
                      line_dash=[6], line_width=2, name="mark")
                for one in figure.marks
            ]  # fmt: skip
        return plot.made(is_step=is_step, has_grid=isinstance(figure.content, Curves | Stack))

    def _heat(self, plot: _Plot, content: Heat) -> None:
        by, unit = scale(plot.figure.y.unit, content.values)
        values = content.values / by
        finite = values[np.isfinite(values)]
        low, high = (float(one) for one in np.quantile(finite, (0.0, SATURATED))) if len(finite) else (0.0, 0.0)
        low, high = (low, high) if high > low else (min(0.0, low), max(high, low, 0.0) or 1.0)
        mapper = Model("LinearColorMapper", palette=list(CIVIDIS), low=low, high=high, nan_color="rgba(0,0,0,0)")
        rows = len(values)
        columns = {
            "image": [values.astype(np.float32)[::-1]], "x": [content.left], "y": [-0.5],
            "width": [content.right - content.left], "height": [rows],
        }  # fmt: skip
        of = source(columns, tags=[text(one) for one in content.rows[::-1]])
        image = plot.add(
            "Image", of, image=ByRow("image"), x=ByRow("x"), y=ByRow("y"), dw=ByRow("width"), dh=ByRow("height"),
            color_mapper=mapper,
        )  # fmt: skip
        plot.tell(image, [("step", "$x{0,0}"), (text(plot.figure.y.label), f"@image{{0,0.[00]}} {unit}")])
        plot.rows(content.rows)
        plot.height = min(460, max(120, 60 + 18 * rows))
        bar = {"formatter": Model("BasicTickFormatter", use_scientific=False), "major_label_policy": Model("NoOverlap")}
        ticker = Model("BasicTicker", mantissas=[1, 2, 5], desired_num_ticks=3)
        plot.right = [
            Model("ColorBar", color_mapper=mapper, width=10, padding=4, background_fill_alpha=0, ticker=ticker,
                  title=unit, title_text_font_size="11px", major_label_text_font_size="11px", title_text_color=SOFT,
                  major_label_text_color=SOFT, **bar)
        ]  # fmt: skip
        plot.center.append(_line("row", "width"))


def _line(name: str, dimension: str) -> Model:
    """Make the mark of what is chosen; each plot has its own, so that only those in sight are drawn anew."""
    return Model("Span", name=name, dimension=dimension, line_color=CHOSEN, line_width=2, visible=False)


def _curves(plot: _Plot, content: Curves) -> None:
    unit_of = plot.figure.y.unit
    by, unit = scale(unit_of, [value for one in content.curves for value in one.y])
    for one, colour in zip(content.curves, colours(len(content.curves)), strict=True):
        columns = {"step": np.asarray(one.x, np.float64), "value": np.asarray(one.y, np.float64) / by}
        if one.smooth:
            columns["smooth"] = np.asarray(one.smooth, np.float64) / by
        of = source(columns, tags=[text(one.label)])
        is_thin = bool(one.smooth) or one.is_faint
        at = {"x": ByRow("step"), "y": ByRow("value")}
        alpha = 0.4 if is_thin else 1.0
        plot.add("Line", of, **at, line_color=colour, line_alpha=alpha, line_width=1 if is_thin else 2)
        dots = plot.add(
            "Scatter", of, **at, size=Fixed(4 if len(one.x) < MANY_POINTS else 2), fill_color=Fixed(colour),
            line_color=Fixed(None), fill_alpha=Fixed(alpha),
        )  # fmt: skip
        if one.smooth:
            plot.add("Line", of, x=ByRow("step"), y=ByRow("smooth"), line_color=colour, line_width=2.5)
        tips = [("step", "@step{0,0.[0]}"), (text(one.label), f"@value{{0,0.[0000]}} {unit}")]
        plot.tell(dots, tips, mode="vline")
    if unit_of in ("1", "token") and all(
        value >= 0 for one in content.curves for value in one.y if math.isfinite(value)
    ):
        plot.y_range = Model("DataRange1d", start=0, min_interval=1)
    else:
        values = [abs(value) for one in content.curves for value in one.y if math.isfinite(value)]
        plot.y_range = Model("DataRange1d", default_span=max(values, default=0.0) / by or 1.0)
    plot.label_y(unit)


def _parts(parts: Mapping[str, Sequence[float]], by: float) -> dict[str, Any]:
    """Return the columns of parts, and where each begins and ends above those before it."""
    columns: dict[str, Any] = {}
    top = np.zeros(len(next(iter(parts.values()), ())))
    for place, values in enumerate(parts.values()):
        part = np.nan_to_num(np.asarray(values, np.float64)) / by
        columns |= {f"part{place}": part, f"low{place}": top, f"high{place}": top + part}
        top = top + part
    return columns | {"zero": np.zeros(len(top)), "all": top}


def _stack(plot: _Plot, content: Stack) -> None:
    by, unit = scale(plot.figure.y.unit, np.sum(list(content.parts.values()) or [[0.0]], axis=0))
    left, right = np.asarray(content.left, np.float64), np.asarray(content.right, np.float64)
    columns = {"left": left, "right": right, "step": (left + right) / 2, **_parts(content.parts, by)}
    of = source(columns, tags=[text(name) for name in content.parts])
    at = {"left": ByRow("left"), "right": ByRow("right")}
    for place, name in enumerate(content.parts):
        plot.add("Quad", of, **at, bottom=ByRow(f"low{place}"), top=ByRow(f"high{place}"),
                 fill_color=Fixed(colour_of(name)), line_color=Fixed(None))  # fmt: skip
    whole = plot.add("Quad", of, **at, bottom=ByRow("zero"), top=ByRow("all"), fill_alpha=Fixed(0),
                     line_color=Fixed(None))  # fmt: skip
    tips = [("step", "@step{0,0.[0]}"), ("all", f"@all{{0,0.[00]}} {unit}")]
    tips += [(text(name), f"@part{place}{{0,0.[00]}} {unit}") for place, name in enumerate(content.parts)]
    plot.tell(whole, tips)
    plot.y_range = Model("DataRange1d", start=0)
    plot.height = 280
    plot.label_y(unit)


def _bars(plot: _Plot, content: Bars) -> None:
    count = len(content.rows)
    columns = {"row": np.arange(count, dtype=np.float64)[::-1], **_parts(content.parts, 0.01)}
    of = source(columns, tags=[text(name) for name in content.parts])
    for place, name in enumerate(content.parts):
        bar = plot.add("HBar", of, y=ByRow("row"), left=ByRow(f"low{place}"), right=ByRow(f"high{place}"),
                       height=Fixed(0.7), fill_color=Fixed(colour_of(name)), line_color=Fixed(None))  # fmt: skip
        plot.tell(bar, [(text(name), f"@part{place}{{0.[0]}} %")])
    plot.rows(content.rows)
    plot.height = 50 + 26 * count
    plot.x_label = f"{plot.figure.x.label}, %"


def _timelines(plot: _Plot, _: Timelines) -> None:
    """Draw the boxes of a step, which ``page.js`` fills in."""
    box: dict[str, Any] = {
        **{key: ByRow(key) for key in BOXES[:4]},
        "fill_color": ByRow("colour"),
        "fill_alpha": ByRow("alpha"),
    }
    box |= {"line_color": Fixed("white"), "line_width": Fixed(0.5)}
    hatch = {"hatch_pattern": "right_diagonal_line", "hatch_color": "white", "hatch_alpha": 0.45, "hatch_scale": 6}
    for name, more in (("boxes", {}), ("waits", {key: Fixed(value) for key, value in hatch.items()})):
        of = source({key: [] for key in BOXES}, name=name, tags=[name])
        plot.tell(plot.add("Quad", of, **box, **more), [("", "@label"), ("", "@lane"), ("takes", "@time")])
    of = source({key: [] for key in ARROWS}, name="arrows", tags=["arrows"])
    line = {"x0": ByRow("x0"), "y0": ByRow("y0"), "x1": ByRow("x1"), "y1": ByRow("y1")}
    plot.tell(plot.add("Segment", of, **line, line_color=Fixed(SOFT), line_width=Fixed(1.5)), [("", "@label")])
    head = Model("NormalHead", size=Fixed(8), fill_color=Fixed(SOFT), line_color=Fixed(SOFT))
    ends = {"x_start": ByRow("x0"), "y_start": ByRow("y0"), "x_end": ByRow("x1"), "y_end": ByRow("y1")}
    plot.center.append(Model("Arrow", source=of, **ends, end=head, line_color=Fixed(SOFT)))
    plot.x_range, plot.y_range = Model("Range1d", name="time"), Model("Range1d", name="lanes")
    plot.y_ticks = {"ticker": Model("FixedTicker", name="lane-ticks", ticks=[], minor_ticks=[]), "name": "lane-axis"}
    plot.height = 320


def _steps(figures: Sequence[Figure]) -> tuple[float, float]:
    """Return the first and the last step that a figure shows, with some room."""
    edges: list[float] = []
    for figure in figures:
        content = figure.content
        if isinstance(content, Curves) and figure.x.unit == "step":
            edges += [edge for one in content.curves if one.x for edge in (one.x[0] - 0.5, one.x[-1] + 0.5)]
        elif isinstance(content, Stack):
            edges += [content.left[0], content.right[-1]]
        elif isinstance(content, Heat):
            edges += [content.left, content.right]
    return (min(edges), max(edges)) if edges else (0.0, 1.0)
