"""Where the memory of devices, processes and nodes goes."""

from otel_rl import vocabulary as v
from scripts.boards.model import BYTES, RATIO, Board, Panel, Row
from scripts.boards.queries import ANY, HOST, OF_DEVICE, OF_ENGINE, OF_RANK, by, each, highest, last, shown


def of_rank(title: str, text: str, metric: str, unit: str = BYTES) -> Panel:
    return Panel(title, text, unit, (each(metric, OF_RANK),))


BOARD = Board(
    "memory",
    "RL memory",
    "Which rank is close to its limit, what holds the memory, and does it leak?",
    (
        Row(
            "Devices",
            (
                Panel(
                    "Share of device memory in use",
                    "By all processes. Above 0.9 the next longer batch may not fit.",
                    RATIO,
                    (
                        (
                            f"{by(OF_DEVICE, last(v.GPU_MEMORY, of=ANY), 'max')} "
                            f"/ {by(OF_DEVICE, last(v.GPU_MEMORY_LIMIT, of=ANY), 'max')}",
                            shown(OF_DEVICE),
                        ),
                    ),
                ),
                Panel(
                    "Allocated and reserved by rank",
                    "Live tensors, and what the allocator holds, at the end of a step. Memory that is reserved and not "
                    "allocated is for nobody else.",
                    BYTES,
                    (each(v.ALLOCATED, OF_RANK, "allocated"), each(v.RESERVED, OF_RANK, "reserved")),
                ),
                of_rank("Activation peak", "The highest of the step's micro-batches.", v.ACTIVATION),
                of_rank("Outside of torch", "Communication, context, an engine's pool, other processes.", v.NON_TORCH),
                of_rank("Buffers of communicators", "An estimate: growth while groups were made.", v.COMM_BUFFERS),
                Panel(
                    "KV cache",
                    "What an engine reserves, and the most that a step used.",
                    BYTES,
                    (
                        (by(OF_ENGINE, last(v.KV_BYTES), "max"), shown(OF_ENGINE, "reserved")),
                        (by(OF_ENGINE, highest(v.KV_BYTES_PEAK), "max"), shown(OF_ENGINE, "peak")),
                    ),
                ),
            ),
        ),
        Row(
            "Fragmentation",
            (
                of_rank(
                    "Reserved memory in unusable pieces",
                    "Free parts of blocks over what is reserved. If it rises near the limit, change the allocator's "
                    "settings or the micro-batch size.",
                    v.FRAGMENTATION,
                    RATIO,
                ),
                of_rank("Reserved and not allocated", "A share of what is reserved.", v.SLACK, RATIO),
                of_rank("Lost by rounding", "A share of what is allocated.", v.ROUNDING, RATIO),
                Panel(
                    "Active and in split blocks",
                    "Bytes that a stream still uses, and free parts of blocks that stay reserved.",
                    BYTES,
                    (each(v.ACTIVE, OF_RANK, "active"), each(v.INACTIVE_SPLIT, OF_RANK, "split")),
                ),
            ),
        ),
        Row(
            "Hosts",
            (
                of_rank("Resident memory of each process", "A line that only rises is a leak.", v.RSS),
                of_rank("Virtual memory of each process", "It may be far above the resident memory.", v.VMS),
                Panel(
                    "Share of node memory in use",
                    "By all processes. Near 1 the kernel ends one of them.",
                    RATIO,
                    (
                        (
                            f"{by((HOST,), last(v.NODE_MEMORY, of=ANY), 'max')} "
                            f"/ {by((HOST,), last(v.NODE_MEMORY_LIMIT, of=ANY), 'max')}",
                            shown((HOST,)),
                        ),
                    ),
                ),
            ),
        ),
    ),
)
