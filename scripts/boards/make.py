"""Make dashboards of boards by grafana-foundation-sdk."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from otel_rl import vocabulary as v
from scripts.boards.boards import ANNOTATIONS, BOARDS
from scripts.boards.model import Annotation, Board, Panel
from scripts.boards.queries import RANK, ROLE, RUN, series

with warnings.catch_warnings():  # the first version of dashboards is what files provision
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import (
        common,
        dashboard,
        heatmap,
        prometheus,
        stat,
        statushistory,
        table,
        tempo,
        timeseries,
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common as looks
    from grafana_foundation_sdk.models import dashboard as models
    from grafana_foundation_sdk.models import heatmap as heats
    from grafana_foundation_sdk.models import prometheus as asked
    from grafana_foundation_sdk.models import tempo as searched

TARGET: Final = Path(__file__).parents[2] / "collector" / "grafana" / "boards"
TAG: Final = "otel_rl"
STORE, TEMPO, JAEGER = (
    looks.DataSourceRef(type_val=name, uid=f"${name}") for name in ("prometheus", "tempo", "jaeger")
)
BUILDERS: Final = {
    "timeseries": timeseries.Panel,
    "status": statushistory.Panel,
    "heatmap": heatmap.Panel,
    "stat": stat.Panel,
    "traces": table.Panel,
}
WINDOWS: Final = ("1m", "5m", "10m", "30m", "1h", "6h")
LABEL: Final = "${__field.labels.%s}"
RUN_IN_TEMPO: Final = {"queryType": "traceql", "query": f'{{ resource.{v.RUN_ID} =~ "${{run:pipe}}" }}'}
RANK_IN_TEMPO: Final = {
    "queryType": "traceql",
    "query": f'{{ resource.{v.RUN_ID} = "{LABEL % RUN}" && resource.{v.ROLE} = "{LABEL % ROLE}" '
    f"&& resource.{v.RANK} = {LABEL % RANK} }}",
}
RUN_IN_JAEGER: Final = {"queryType": "search", "service": "${service}", "tags": f"{v.RUN_ID}=${{run}}"}


def explore(source: looks.DataSourceRef, query: dict[str, str]) -> str:
    """Return the address of a search for traces, with the board's range of time."""
    name = source.type_val
    asked_for = {"refId": "A", "datasource": {"type": name, "uid": f"${{{name}}}"}, **query}
    pane = {"datasource": f"${{{name}}}", "queries": [asked_for], "range": {"from": "${__from}", "to": "${__to}"}}
    return f"/explore?schemaVersion=1&orgId=1&panes={quote(json.dumps({'a': pane}), safe='{}$:,')}"


def link(title: str, url: str) -> dashboard.DashboardLink:
    return shown_link(title).type(models.DashboardLinkType.LINK).url(url).target_blank(True)


def shown_link(title: str) -> dashboard.DashboardLink:
    """Begin a link that is not hidden in a menu, as it would be by default."""
    return dashboard.DashboardLink(title).placement(None)


def targets(panel: Panel) -> Iterator[Any]:
    """Make the queries of a panel, each with a name of one letter."""
    for place, (query, legend) in enumerate(panel.queries):
        name = chr(ord("A") + place)
        if panel.kind == "traces":
            search = tempo.Dataquery().datasource(TEMPO).query_type("traceql").query(query).limit(50)
            yield search.table_type(searched.SearchTableType.TRACES).ref_id(name)
            continue
        target = prometheus.Dataquery().datasource(STORE).expr(query).legend_format(legend).ref_id(name)
        target.format(asked.PromQueryFormat.HEATMAP if panel.kind == "heatmap" else asked.PromQueryFormat.TIME_SERIES)
        if panel.kind == "stat":
            target.instant()
        else:
            target.range().exemplar(panel.kind != "status")
        yield target


def drawn(panel: Panel) -> Any:
    """Make a panel."""
    built = BUILDERS[panel.kind]().title(panel.title).description(panel.text).unit(panel.unit)
    built.datasource(TEMPO if panel.kind == "traces" else STORE)
    if all(label in legend for label in (RUN, RANK) for _, legend in panel.queries):
        built.data_links([link("Traces of this rank in Tempo", explore(TEMPO, RANK_IN_TEMPO))])
    for target in targets(panel):
        built.with_target(target)
    return LOOKS.get(panel.kind, lambda *_: None)(built, panel) or built


def size(panel: Panel, beside: int) -> tuple[int, int]:
    """Return width and height of a panel, so that those of a row fill their lines."""
    if panel.kind == "stat":
        return 24 // beside, 4
    return (24 if beside == 1 else 8 if beside % 3 == 0 else 12), 8


def as_lines(built: Any, panel: Panel) -> None:
    legend = common.VizLegendOptions().display_mode(looks.LegendDisplayMode.TABLE).show_legend(True)
    built.legend(legend.placement(looks.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"]))
    built.tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI))
    built.fill_opacity(30 if panel.stacked else 0).span_nulls(True)
    if panel.stacked:
        built.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A"))


def as_status(built: Any, panel: Panel) -> None:
    """Show a row for each rank, and a value as a color."""
    color = dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_GR_YL_RD)
    built.color_scheme(color).show_value(looks.VisibilityMode.NEVER).legend(
        common.VizLegendOptions()
        .display_mode(looks.LegendDisplayMode.LIST)
        .show_legend(True)
        .placement(looks.LegendPlacement.BOTTOM)
    )


def as_heatmap(built: Any, panel: Panel) -> None:
    scheme = heatmap.HeatmapColorOptions().mode(heats.HeatmapColorMode.SCHEME).scheme("Spectral").steps(64)
    built.calculate(False).color(scheme.exponent(0.5)).y_axis(heatmap.YAxisConfig().unit(panel.unit)).show_legend()


def as_number(built: Any, panel: Panel) -> None:
    built.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))


LOOKS: Final = {
    "timeseries": as_lines,
    "status": as_status,
    "heatmap": as_heatmap,
    "stat": as_number,
}


def source(name: str, title: str) -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable(name).label(title).type(name)


def values(name: str, title: str, query: str) -> dashboard.QueryVariable:
    """Make a variable that Prometheus has the values of; the newest run comes first, by its name."""
    variable = dashboard.QueryVariable(name).label(title).datasource(STORE).query(query)
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)


def chosen(name: str, title: str, query: str) -> dashboard.QueryVariable:
    """Make a variable of which any number of values, or all, can be chosen."""
    everything = models.VariableOption(text="All", value="$__all", selected=True)
    variable = values(name, title, query).multi(True).include_all(True).all_value(".*").current(everything)
    return variable.sort(models.VariableSort.NATURAL_ASC)


def variables(board: Board) -> Iterator[Any]:
    recorded = series(v.SELF_RECORDED)
    of_run = f'{recorded}{{{RUN}=~"$run"}}'
    yield from (
        source("prometheus", "Metrics"),
        source("tempo", "Traces in Tempo"),
        source("jaeger", "Traces in Jaeger"),
    )
    run = values("run", "Run", f"label_values({recorded}, {RUN})").sort(models.VariableSort.NATURAL_DESC)
    yield run.multi(not board.is_comparison)
    if board.is_comparison:
        yield values("other", "Other run", f"label_values({recorded}, {RUN})").sort(models.VariableSort.NATURAL_DESC)
        yield dashboard.TextBoxVariable("shift").label("which began earlier by").default_value("0s")
    else:
        yield chosen("role", "Role", f"label_values({of_run}, {ROLE})")
        yield chosen("rank", "Rank", f"label_values({of_run}, {RANK})")
    window = dashboard.CustomVariable("window").label("Window, at least a step").values(",".join(WINDOWS))
    yield window.current(models.VariableOption(text="10m", value="10m", selected=True))
    yield values("service", "Service", f"label_values({of_run}, job)").hide(models.VariableHide.HIDE_VARIABLE)


def annotated(one: Annotation) -> dashboard.AnnotationQuery:
    query = dashboard.AnnotationQuery().name(one.name).datasource(STORE).enable(True).hide(False).icon_color(one.color)
    return query.expr(one.query).title_format(one.name).text_format(one.title).step("60s").placement(None)


def made(board: Board) -> dict[str, Any]:
    """Make the JSON of a board."""
    whole = dashboard.Dashboard(board.title).uid(f"otel-rl-{board.name}").description(board.text).tags([TAG])
    whole.editable().time("now-3h", "now").refresh("30s").timezone("browser")
    whole.tooltip(models.DashboardCursorSync.CROSSHAIR)
    whole.link(
        shown_link("Boards").type(models.DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(True)
        .keep_time(True).include_vars(True)
    )  # fmt: skip
    whole.link(link("Traces in Tempo", explore(TEMPO, RUN_IN_TEMPO)))
    whole.link(link("Traces in Jaeger", explore(JAEGER, RUN_IN_JAEGER)))
    for variable in variables(board):
        whole.with_variable(variable)
    for one in ANNOTATIONS:
        whole.annotation(annotated(one))
    for row in board.rows:
        whole.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            width, height = size(panel, len(row.panels))
            whole.with_panel(drawn(panel).span(width).height(height))
    built = whole.build()
    for number, panel in enumerate(built.panels or (), 1):
        panel.id_val = number
    return json.loads(json.dumps(built, cls=JSONEncoder))


def files() -> dict[str, str]:
    """Return the text of each file of `collector/grafana/boards`."""
    return {f"{board.name}.json": written(made(board)) for board in BOARDS}


def written(whole: dict[str, Any]) -> str:
    """Write a board with a line for each panel, so that a change of a panel is one of a line."""
    rest = json.dumps({name: value for name, value in whole.items() if name != "panels"})
    panels = ",\n".join(map(json.dumps, whole["panels"]))
    return f'{rest[:-1]}, "panels": [\n{panels}\n]}}\n'
