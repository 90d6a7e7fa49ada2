"""The Grafana boards: the committed JSON is what the script makes, and every panel says what it shows."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_rl import vocabulary as v
from otel_rl.catalogue.series_names import all_series, emitted, label_name, series_name
from scripts.boards.boards import ANNOTATIONS, BOARDS
from scripts.boards.make import JSONEncoder, files, models
from scripts.boards.model import Board
from scripts.boards.queries import rate
from tests.rules import RECORDED, recording

COLLECTOR = Path(__file__).parents[2] / "collector"
FOLDER = COLLECTOR / "grafana" / "boards"
OF_BOARDS = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
RULED = {rule["record"] for rule in recording()}
PLACED = ("placement", "inControlsMenu")
"""What the SDK adds to links and annotations that it reads: they would be hidden in a menu."""


def asked(board: Board) -> list[tuple[str, str]]:
    """The queries in PromQL, each with its legend."""
    return [query for panel in board.panels if panel.kind != "traces" for query in panel.queries]


def test_the_files_are_what_the_script_makes() -> None:
    """Write them anew by `python -m scripts.boards`."""
    assert files() == {path.name: path.read_text() for path in FOLDER.iterdir()}


@pytest.mark.parametrize("name", [f"{board.name}.json" for board in BOARDS])
def test_the_sdk_reads_what_it_wrote(name: str) -> None:
    """Every field is one that its models know."""
    written = json.loads((FOLDER / name).read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        read = json.loads(json.dumps(models.Dashboard.from_json(written), cls=JSONEncoder))
    assert written == without_placement(read)


def without_placement(node: Any) -> Any:
    """A document without what the SDK adds to it."""
    if isinstance(node, dict):
        return {key: without_placement(each) for key, each in node.items() if (key, each) != PLACED}
    return [without_placement(each) for each in node] if isinstance(node, list) else node


@pytest.mark.parametrize("name", [f"{board.name}.json" for board in BOARDS])
def test_panels_do_not_overlap_and_fill_their_lines(name: str) -> None:
    """Of 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((FOLDER / name).read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    lines = {y for _, y in taken}
    assert [] == [(x, y) for y in lines for x in range(24) if (x, y) not in taken]


@OF_BOARDS
def test_a_panel_says_what_it_shows(board: Board) -> None:
    """A title, one to three short sentences, a unit and queries with legends."""
    for panel in board.panels:
        assert 1 <= len(re.findall(r"[.?](?= |$)", panel.text)) <= 3, panel.title
        assert panel.title[0].isupper() and panel.text[0].isupper() and panel.text.endswith("."), panel.title
        assert panel.unit, panel.title
        assert panel.queries, panel.title
        assert panel.kind == "traces" or all(legend for _, legend in panel.queries), panel.title
        assert len({*panel.queries}) == len(panel.queries), panel.title


@OF_BOARDS
def test_titles_of_a_board_differ(board: Board) -> None:
    """The same title may stand in `Now`, as a number."""
    titles = [(panel.title, panel.kind) for panel in board.panels]
    assert len({*titles}) == len(titles)


@OF_BOARDS
def test_series_and_labels_are_of_the_vocabulary(board: Board) -> None:
    """A series is one of ours, of a recording rule, or of a Collector; a label is one that they have."""
    histograms = {series_name(row) for row in emitted().values() if row.kind == "histogram"}
    known = all_series() | histograms | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum")}
    labels = {*map(label_name, v.ATTRIBUTES)}
    for query, _ in asked(board):
        assert set() == {*RECORDED.findall(query)} - RULED
        found = set(re.findall(r"\b(?:rl|otel_rl|gen_ai|hw)_\w+", re.sub(r'"[^"]*"', "", RECORDED.sub("", query))))
        assert set() == found - known - labels
        assert found & known or RECORDED.search(query) or "otelcol_" in query or "count by" in query


@OF_BOARDS
def test_a_legend_uses_labels_that_its_query_leaves(board: Board) -> None:
    """Else Grafana would show it empty."""
    for query, legend in asked(board):
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query))))
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept or re.search(r"rank:\w+:\w+", query)


def test_a_query_fits_the_kind_of_its_metric() -> None:
    """The functions refuse others."""
    with pytest.raises(ValueError, match=r"rl.step.time is a gauge"):
        rate(v.STEP_TIME)


def test_the_overview_has_the_rows_that_people_look_at_first() -> None:
    """In this order."""
    assert ["Now", "Reward, KL, entropy", "Losses of critic and actor", "Devices and rollouts"] == [
        row.title for row in BOARDS[0].rows
    ][:4]


def test_latency_is_never_only_a_mean() -> None:
    """Histograms are shown as quantiles, heatmaps or time spent."""
    assert not any("histogram_avg" in query for board in BOARDS for query, _ in asked(board))


def test_findings_are_drawn_over_every_board() -> None:
    """Alerts, faults, stalls and starts."""
    for text in files().values():
        drawn = json.loads(text)["annotations"]["list"]
        assert [one.query for one in ANNOTATIONS] == [each["expr"] for each in drawn]


def test_a_board_can_be_read_by_run_role_and_rank() -> None:
    """And leads to both stores of traces, whichever a user has."""
    for board, text in zip(BOARDS, files().values(), strict=True):
        whole = json.loads(text)
        names = {variable["name"] for variable in whole["templating"]["list"]}
        own = {"other", "shift"} if board.is_comparison else {"role", "rank"}
        assert {"prometheus", "tempo", "jaeger", "run", "window", "service", *own} == names
        assert {"Boards", "Traces in Tempo", "Traces in Jaeger"} == {link["title"] for link in whole["links"]}
        used = set(re.findall(r"\$(\w+)|\$\{(\w+)[:}]", text))
        assert {name for pair in used for name in pair if name and not name.startswith("__")} <= names


def test_compose_provisions_the_boards() -> None:
    """Grafana looks for them where compose mounts them."""
    grafana = yaml.safe_load((COLLECTOR / "compose.yaml").read_text())["services"]["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    (provider,) = yaml.safe_load((COLLECTOR / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert provider["options"]["path"] == mounted["./grafana/boards"]
    assert mounted["./grafana/dashboards.yaml"].startswith("/etc/grafana/provisioning/dashboards/")
