"""What otel_rl and the Collectors record, send and lose."""

from otel_rl import vocabulary as v
from scripts.boards.model import BYTES, BYTES_RATE, EVENTS_RATE, NUMBER, RATIO, SECONDS, Board, Panel, Row
from scripts.boards.queries import ANY, HOST, RUN, counted, each, growth, label_name

SIGNAL, REASON, OUTCOME = map(label_name, (v.SIGNAL, v.REASON, v.OUTCOME))


def rate_of(title: str, text: str, metric: str) -> Panel:
    return Panel(title, text, EVENTS_RATE, (growth(metric, (RUN, SIGNAL), of=ANY),))


def so_far(title: str, text: str, metric: str, *labels: str) -> Panel:
    return Panel(title, text, NUMBER, (counted(metric, (RUN, *labels), of=ANY),))


def of_collector(title: str, text: str, unit: str, query: str, *labels: str) -> Panel:
    return Panel(title, text, unit, ((query, " ".join(f"{{{{{label}}}}}" for label in labels)),))


BOARD = Board(
    "telemetry",
    "RL telemetry",
    "Is what the other boards show complete? Losses, queues and errors of otel_rl itself and of the Collectors.",
    (
        Row(
            "Losses",
            (
                so_far(
                    "Dropped while recording so far",
                    "By signal and reason. docs/failures.md explains the reasons.",
                    v.SELF_DROPPED,
                    *(SIGNAL, REASON),
                ),
                so_far("Errors of otel_rl so far", "By reason. Training does not see them.", v.SELF_ERRORS, REASON),
                so_far(
                    "Sent records by outcome so far",
                    "Everything but shipped was not stored: rejected, refused, left out or damaged.",
                    v.SELF_SHIPPED,
                    *(SIGNAL, OUTCOME),
                ),
                so_far(
                    "Changed records so far",
                    "Parts that were cut, replaced, added or left out.",
                    v.SELF_CHANGED,
                    REASON,
                ),
            ),
        ),
        Row(
            "The queue to the server",
            (
                Panel(
                    "Age of the oldest record that waits",
                    "By node. It rises while the server takes nothing. The journal keeps the records.",
                    SECONDS,
                    (each(v.SELF_OLDEST, (RUN, HOST), of=ANY),),
                ),
                Panel("Bytes that wait", "By node.", BYTES, (each(v.SELF_WAITING, (RUN, HOST), of=ANY),)),
                so_far(
                    "Requests sent again so far",
                    "By signal, outcome and answer of the server.",
                    v.SELF_RETRIED,
                    *(SIGNAL, OUTCOME, REASON),
                ),
                so_far("Sent after they were left out so far", "By signal.", v.SELF_FETCHED, SIGNAL),
                Panel(
                    "Processes that record",
                    "By node, without sidecars.",
                    NUMBER,
                    (each(v.SELF_WRITERS, (RUN, HOST), of=ANY),),
                ),
                so_far("Steps compared over ranks so far", "By outcome.", v.SELF_DERIVED, OUTCOME),
            ),
        ),
        Row(
            "Amounts",
            (
                rate_of("Recorded", "Spans, points and logs per second.", v.SELF_RECORDED),
                rate_of("Encoded", "Of these, encoded per second.", v.SELF_ENCODED),
                rate_of("Journaled", "Of these, written to the journal per second.", v.SELF_JOURNALED),
                Panel("Bytes to the journal", "Per second.", BYTES_RATE, (growth(v.SELF_BYTES, (RUN,), of=ANY),)),
                Panel(
                    "Series of each run",
                    "Series with a point in the last five minutes. Each costs Prometheus memory.",
                    NUMBER,
                    ((f'count by ({RUN}) ({{{RUN}=~"$run"}})', f"{{{{{RUN}}}}}"),),
                ),
                so_far("Requests that are no spans so far", "Only failures, extremes and a sample are.", v.OMITTED),
            ),
        ),
        Row(
            "Collectors",
            (
                of_collector(
                    "Records that an exporter could not send or queue so far",
                    "By node and exporter. Our own sidecars send refused records again.",
                    NUMBER,
                    "sum by (host_name, exporter) (last_over_time("
                    '{__name__=~"otelcol_exporter_(send|enqueue)_failed_.+_total"}[$window]))',
                    *(HOST, "exporter"),
                ),
                of_collector(
                    "Points dropped by a filter so far",
                    "Too old or too new for Prometheus, or of a kind that it cannot store.",
                    NUMBER,
                    "sum by (host_name, filter) (last_over_time("
                    "otelcol_processor_filter_datapoints_filtered_total[$window]))",
                    *(HOST, "filter"),
                ),
                of_collector(
                    "Share of the exporters' queues in use",
                    "At 1 the Collector refuses new records.",
                    RATIO,
                    "max by (host_name, exporter) (otelcol_exporter_queue_size / otelcol_exporter_queue_capacity)",
                    *(HOST, "exporter"),
                ),
                Panel(
                    "Records that receivers accept",
                    "Per second, by node and receiver.",
                    EVENTS_RATE,
                    tuple(
                        (
                            f"sum by (host_name, receiver) (rate(otelcol_receiver_accepted_{kind}_total[$window]))",
                            f"{kind} {{{{host_name}}}} {{{{receiver}}}}",
                        )
                        for kind in ("spans", "metric_points", "log_records")
                    ),
                ),
            ),
        ),
    ),
)
