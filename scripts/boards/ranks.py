"""Which rank is slow, which waits, and what its device does."""

from otel_rl import vocabulary as v
from scripts.boards.model import BYTES, BYTES_RATE, NUMBER, RATIO, SECONDS, TOKENS_RATE, Board, Panel, Row
from scripts.boards.overview import UTILISATION
from scripts.boards.queries import (
    ANY,
    HOST,
    OF_DEVICE,
    OF_RANK,
    RUN,
    STAGE,
    by,
    counted,
    each,
    growth,
    is_,
    is_not,
    label_name,
    last,
    mean,
    quantile,
    quantiles,
    rate,
    ruled,
    shown,
    time_in,
)

ACTIVITY, REASON, OPERATION, THROTTLE, CODE, ERROR, LINK, DIRECTION, CLOCK = map(
    label_name,
    (
        *(v.ACTIVITY, v.IDLE_REASON, v.COMM_OPERATION, v.THROTTLE_REASON, v.XID_CODE, v.ERROR_TYPE, v.LINK),
        *(v.NETWORK_DIRECTION, v.CLOCK_TYPE),
    ),
)


def activity(title: str, text: str, kind: str) -> Panel:
    """Make the heatmap of one activity: a row for each rank."""
    query = by(OF_RANK, last(v.ACTIVITY_TIME, is_(v.ACTIVITY, kind)), "max")
    return Panel(title, text, SECONDS, ((query, shown(OF_RANK)),), kind="status")


def tokens(title: str, text: str, metric: str) -> Panel:
    query = by(OF_RANK, rate(metric, is_not(v.TOKEN_KIND, "padding")))
    return Panel(title, text, TOKENS_RATE, ((query, shown(OF_RANK)),), kind="status")


def of_device(title: str, text: str, unit: str, metric: str) -> Panel:
    return Panel(title, text, unit, (each(metric, OF_DEVICE, of=ANY),))


BOARD = Board(
    "ranks",
    "RL ranks",
    "Which rank is slow, in which stage, and who waits for it? Then what its device and its node do.",
    (
        Row(
            "Every rank over time",
            (
                activity("Own work in a step", "Seconds of a step outside of collectives and waits.", "active"),
                activity("Communication in a step", "Seconds of a step in collectives, waits inside them too.", "comm"),
                activity("Waits in a step", "Seconds of a step in bubbles: for data, a queue, the controller.", "idle"),
                Panel(
                    "Step time",
                    "From the begin of a step to that of the next one.",
                    SECONDS,
                    (each(v.STEP_TIME, OF_RANK),),
                    kind="status",
                ),
                tokens("Tokens of rollouts", "Tokens per second that each rank generates or reads.", v.SAMPLE_TOKENS),
                tokens("Tokens of training", "Tokens per second in forward passes, without padding.", v.TRAIN_TOKENS),
            ),
        ),
        Row(
            "Stragglers",
            (
                Panel(
                    "Time that a slow rank costs, by stage",
                    "Seconds per step of the rank's own work beyond the median of its peers. The sidecar compares the "
                    "ranks whose journals it can read.",
                    SECONDS,
                    (
                        (
                            f"topk(20, {by((*OF_RANK, STAGE), mean(v.STRAGGLER_COST), 'avg')})",
                            shown((*OF_RANK, STAGE)),
                        ),
                    ),
                ),
                Panel(
                    "Own work of a rank beyond the median",
                    "Seconds of a step, by all ranks that Prometheus knows. Of two ranks it shows half.",
                    SECONDS,
                    ((f"topk(20, {ruled('rank', 'rl_active_excess_seconds', 'step')})", shown(OF_RANK)),),
                ),
                Panel(
                    "Share of a stage beyond the median",
                    "Where a slow rank is slow. A rank that waits is long in a stage, too.",
                    RATIO,
                    ((f"topk(20, {ruled('rank', 'rl_stage_excess', 'ratio30m')})", shown((*OF_RANK, STAGE))),),
                ),
                Panel(
                    "Age of stalls",
                    "A stage that holds the run up, by the role of its process. It is 0 once the stall has ended.",
                    SECONDS,
                    (each(v.STALL_ACTIVE, (RUN, HOST, STAGE), of=ANY),),
                ),
            ),
        ),
        Row(
            "Waits and collectives",
            (
                Panel(
                    "Waits for slower peers",
                    "Seconds per second in collectives in which a rank only waited. The rank with the least is the one "
                    "that the others wait for.",
                    SECONDS,
                    (growth(v.SKEW_WAIT, OF_RANK),),
                ),
                Panel(
                    "Bubbles by reason",
                    "The share of a step that the ranks wait: data, queue, pipeline, controller, slower ranks (skew).",
                    RATIO,
                    ((by((RUN, REASON), mean(v.BUBBLE_RATIO), "avg"), shown((RUN, REASON))),),
                    stacked=True,
                ),
                Panel(
                    "Slowest collectives by operation",
                    "The 99th percentile of the duration, of all ranks.",
                    SECONDS,
                    ((quantile(0.99, v.COMM_DURATION, (RUN, OPERATION)), shown((RUN, OPERATION))),),
                ),
                Panel(
                    "Bytes into collectives",
                    "Inputs of each operation per second, of all ranks.",
                    BYTES_RATE,
                    (growth(v.COMM_IO, (RUN, OPERATION)),),
                ),
                Panel(
                    "Waits by reason, median and tail",
                    "How long one wait takes.",
                    SECONDS,
                    quantiles(v.IDLE, (RUN, REASON)),
                ),
                Panel(
                    "Exposed communication by stage",
                    "Seconds per second in which a stage's stream waited for collectives, of all ranks.",
                    SECONDS,
                    ((time_in(v.COMM_EXPOSED_TIME, (RUN, STAGE)), shown((RUN, STAGE))),),
                ),
            ),
        ),
        Row(
            "Devices",
            (
                UTILISATION,
                Panel(
                    "Busy multiprocessors and memory bandwidth",
                    "How busy the device is, where its counters can be read (Hopper and newer).",
                    RATIO,
                    (
                        each(v.SM_ACTIVITY, OF_DEVICE, "multiprocessors", of=ANY),
                        each(v.TENSOR_ACTIVITY, OF_DEVICE, "tensor cores", of=ANY),
                        each(v.DRAM_UTILIZATION, OF_DEVICE, "bandwidth", of=ANY),
                    ),
                ),
                of_device("Power", "Drawn by each device.", "watt", v.POWER),
                of_device("Temperature", "Of each device.", "celsius", v.TEMPERATURE),
                Panel(
                    "Clocks",
                    "Of multiprocessors and memory. Compare them with the reasons beside.",
                    "hertz",
                    (each(v.HW_CLOCK, (*OF_DEVICE, CLOCK), of=ANY),),
                ),
                Panel(
                    "Share of time with a lowered clock",
                    "By reason. power_cap and application are what somebody has set.",
                    RATIO,
                    ((by((*OF_DEVICE, THROTTLE), mean(v.THROTTLE, of=ANY), "max"), shown((*OF_DEVICE, THROTTLE))),),
                ),
                Panel(
                    "Errors of devices so far",
                    "Memory errors and XIDs since the sidecar began. Uncorrected errors need an operator.",
                    NUMBER,
                    (
                        counted(v.HW_ERRORS, (*OF_DEVICE, ERROR), "memory", of=ANY, how="max"),
                        counted(v.XID, (*OF_DEVICE, CODE), "XID", of=ANY, how="max"),
                    ),
                ),
                Panel(
                    "Bytes over PCIe and NVLink",
                    "Per second, by link and direction.",
                    BYTES_RATE,
                    (growth(v.GPU_IO, (*OF_DEVICE, LINK, DIRECTION), of=ANY, how="max"),),
                ),
                Panel(
                    "Failed devices",
                    "It is 1 if the driver lost the device.",
                    NUMBER,
                    (
                        (
                            by(OF_DEVICE, last(v.HW_STATUS, is_(v.HW_STATE, "failed"), of=ANY), "max"),
                            shown(OF_DEVICE),
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                Panel(
                    "Cores in use",
                    "The share of all cores of the node.",
                    RATIO,
                    (each(v.CPU_UTILIZATION, (HOST,), of=ANY),),
                ),
                Panel(
                    "Memory in use",
                    "Of the node, by all processes.",
                    BYTES,
                    (each(v.NODE_MEMORY, (HOST,), "used", of=ANY), each(v.NODE_MEMORY_LIMIT, (HOST,), "limit", of=ANY)),
                ),
                Panel(
                    "Network",
                    "Bytes per second of all interfaces but loopback. Traffic between ranks of one node is not in it.",
                    BYTES_RATE,
                    (growth(v.NETWORK_IO, (HOST, DIRECTION), of=ANY, how="max"),),
                ),
            ),
        ),
    ),
)
