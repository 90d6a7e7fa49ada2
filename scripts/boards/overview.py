"""What a run does now, and the four rows that people look at first."""

from otel_rl import vocabulary as v
from scripts.boards import learning
from scripts.boards.model import BYTES, NUMBER, RATIO, SECONDS, TOKENS_RATE, Board, Panel, Row
from scripts.boards.queries import (
    ANY,
    OF_RANK,
    ROLE,
    RUN,
    STAGE,
    by,
    each,
    is_,
    label_name,
    last,
    median,
    ruled,
    select,
    series,
    shown,
    spread,
)

DEVICE, KIND, WORK, FLOPS_SCOPE = map(label_name, (v.HW_ID, v.GOODPUT_KIND, v.WORK, v.FLOPS_SCOPE))
SLOWEST_STEPS = f'{{ resource.{v.RUN_ID} =~ "$run" && name = "{v.LOOP}" && duration > 1s }}'

STEP_TIME = Panel(
    "Step time",
    "The median of the window, of the slowest rank. Exemplars lead to the traces of the longest steps.",
    SECONDS,
    ((by((RUN,), median(v.STEP_TIME), "max"), shown((RUN,))),),
)
TOKENS = Panel(
    "Tokens per second",
    "Of all ranks together: prompts and responses of rollouts, and what the loss uses.",
    TOKENS_RATE,
    ((by((RUN, ROLE, WORK), ruled("role", v.TOKENS_RATE, "sum", of=ANY), "max"), shown((RUN, WORK))),),
)
GOODPUT = Panel(
    "Where the time goes",
    "Shares of the ranks' wall time in the last half hour, together 1. Productive is what makes tokens and updates.",
    RATIO,
    ((by((RUN, KIND), ruled("run", "rl_goodput", "ratio30m", of=ANY), "avg"), shown((RUN, KIND))),),
    stacked=True,
)
STAGES = Panel(
    "Time by stage",
    "Seconds per second of a rank in each stage, the mean of the ranks in half an hour. Waits for other ranks count.",
    SECONDS,
    ((by((RUN, STAGE), ruled("rank", "rl_stage_time", "rate30m"), "avg"), shown((RUN, STAGE))),),
    stacked=True,
)
LATENCY = Panel(
    "Latency of rollout requests",
    "From submission to the end, as a heatmap. A second band far above the first is the tail.",
    SECONDS,
    ((spread(v.REQUEST_DURATION, ()), "requests"),),
    kind="heatmap",
)
UTILISATION = Panel(
    "GPU utilisation by rank, stacked",
    "The share of time in which a kernel ran on the rank's device. It says nothing about how busy the device was.",
    RATIO,
    (
        (
            by(
                OF_RANK,
                f"{by((DEVICE,), last(v.GPU_UTILIZATION, of=ANY), 'max')} * on ({DEVICE}) group_right () "
                f"{select('rank:rl_device:info')}",
                "max",
            ),
            shown(OF_RANK),
        ),
    ),
    stacked=True,
)


def small(title: str, text: str, unit: str, query: str, legend: str) -> Panel:
    return Panel(title, text, unit, ((query, legend),), kind="stat")


NOW = Row(
    "Now",
    (
        small(
            "Live ranks",
            "Ranks with a step in the window, by role.",
            NUMBER,
            f"count by ({RUN}, {ROLE}) ({by(OF_RANK, last(v.STEP_TIME), 'count')})",
            shown((RUN, ROLE)),
        ),
        small(
            "Since the last step",
            "Far more than a step takes: the run hangs, has ended, or its telemetry does not arrive.",
            SECONDS,
            f"time() - {by((RUN,), f'max_over_time(timestamp({select(series(v.STEP_TIME))})[1h:15s])', 'max')}",
            shown((RUN,)),
        ),
        small("Step time", "The median of the window, of the slowest rank.", SECONDS, *STEP_TIME.queries[0]),
        small("Tokens per second", "Of all ranks together, by kind of work.", TOKENS_RATE, *TOKENS.queries[0]),
        small(
            "MFU",
            "Model FLOPs utilisation: the share of the device's peak, where the peak is known.",
            RATIO,
            by((RUN, FLOPS_SCOPE), ruled("role", v.MFU, "avg", of=ANY), "avg"),
            shown((RUN, FLOPS_SCOPE)),
        ),
        small(
            "Productive share",
            "The share of the ranks' wall time that makes tokens and updates, in the last half hour.",
            RATIO,
            by(
                (RUN,),
                ruled("run", "rl_goodput", "ratio30m", is_(v.GOODPUT_KIND, "productive"), of=ANY),
                "avg",
            ),
            shown((RUN,)),
        ),
    ),
)

BOARD = Board(
    "overview",
    "RL overview",
    "Is the run alive, fast and learning? Start here, and go on to the board of what looks odd.",
    (
        NOW,
        Row("Reward, KL, entropy", (learning.REWARD, learning.KL, learning.ENTROPY)),
        Row("Losses of critic and actor", (learning.CRITIC, learning.ACTOR)),
        Row("Devices and rollouts", (UTILISATION, LATENCY)),
        Row(
            "Throughput and memory by rank",
            (
                TOKENS,
                Panel(
                    "Tokens per second by rank",
                    "Tokens of rollouts that each rank counts, by the time from one rollout to the next.",
                    TOKENS_RATE,
                    (
                        (
                            by(OF_RANK, last(v.TOKENS_RATE, is_(v.WALL, "cycle"), is_(v.WORK, "rollout")), "max"),
                            shown(OF_RANK),
                        ),
                    ),
                ),
                Panel(
                    "Device memory that each rank holds",
                    "Bytes that the allocator of the rank holds at the end of a step.",
                    BYTES,
                    (each(v.RESERVED, OF_RANK),),
                ),
                Panel(
                    "Host memory of each process",
                    "Resident bytes. A line that only rises is a leak.",
                    BYTES,
                    (each(v.RSS, OF_RANK),),
                ),
            ),
        ),
        Row("Where the time goes", (GOODPUT, STAGES, STEP_TIME)),
        Row(
            "Traces",
            (
                Panel(
                    "Steps longer than a second",
                    "Traces of the chosen runs in Tempo. Each is one step, from rollout to checkpoint.",
                    SECONDS,
                    ((SLOWEST_STEPS, ""),),
                    kind="traces",
                ),
            ),
        ),
    ),
)
