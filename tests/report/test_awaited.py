"""For whom ranks wait where no stage of all of them is slow: from spans to the sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from tests.peers import BEGIN_NS, Did, Met, Peer
from tests.watched import DEAD

STEPS = 11
"""The first two are left out."""
HOLE = "under no stage"
"""What is called so is not journaled."""
WRITE = "write samples"
Step = Callable[[int, int], list[Did]]
"""What a rank does in a step, by rank and number of the step."""


def judged(directory: Path, world: int, did: Step) -> list[Finding]:
    """Journal the steps of all ranks and judge them."""
    ranks = [Peer(directory, rank, world, identity=DEAD) for rank in range(world)]
    for number in range(1, STEPS + 1):
        for rank in ranks:
            spans = rank.step(number, did(rank.rank, number), is_journaled=False)
            rank.write([span for span in spans[::-1] if span.name != HOLE])
    for rank in ranks:
        rank.die()
    return build_report(open_run(directory), BEGIN_NS).findings.time


def late(number: int, *first: Did, waits_ms: float, group: str = "all", size: int = 3) -> list[Did]:
    """Do something after 30 ms of forward, then meet the others in a collective of 10 ms."""
    met = Met(10 + waits_ms, number, group=group, size=size)
    return [Did(v.FORWARD, 30), *first, Did(v.OPTIMIZER, 0, [met])]


def alone(name: str) -> Step:
    """Let rank 0 do something of 60 ms that no other rank does."""
    return lambda rank, number: late(number, *([] if rank else [Did(name, 60)]), waits_ms=60 * (rank > 0))


def in_pieces(rank: int, number: int) -> list[Did]:
    """Rank 0 alone has five stages of 12 ms."""
    pieces = [] if rank else [Did(f"piece {place}", 12) for place in range(5)]
    return late(number, *pieces, waits_ms=60 * (rank > 0))


def hidden(rank: int, number: int) -> list[Did]:
    """What rank 0 does longer hides collectives, so that nobody knows whether it works."""
    return late(number, Did(WRITE, 5 if rank else 65, more={v.COMM_HIDDEN: True}), waits_ms=60 * (rank > 0))


def both(rank: int, number: int) -> list[Did]:
    """Ranks 0 and 1 of four write."""
    return late(number, *([Did(WRITE, 60)] if rank < 2 else []), waits_ms=60 * (rank > 1), size=4)


def in_groups(rank: int, number: int) -> list[Did]:
    """Rank 0 holds rank 1 up; ranks 2 and 3 wait for nobody, and nobody for them."""
    return late(
        number, *([] if rank else [Did(WRITE, 60)]), waits_ms=60 * (rank == 1), group=f"group {rank // 2}", size=2
    )


def in_turn(rank: int, number: int) -> list[Did]:
    """Each step another rank writes."""
    is_last = number % 3 == rank
    return late(number, *([Did(WRITE, 60)] if is_last else []), waits_ms=60 * (not is_last))


def uneven(rank: int, number: int) -> list[Did]:
    """All wait for each other in turn, in hidden collectives too, but rank 0 never where it can be seen."""
    waits_ms = 60 * (rank > 0)
    return late(number, Did("hides", 65 - waits_ms / 2, more={v.COMM_HIDDEN: True}), waits_ms=waits_ms)


def many(number: int, *first: Did, waits_ms: float) -> list[Did]:
    """Wait in one of 99 collectives of 0.1 ms."""
    short = [Met(0.1, 100 * number + place) for place in range(1, 99)]
    return [Did(v.FORWARD, 30), *first, Did(v.OPTIMIZER, 0, [Met(0.1 + waits_ms, 100 * number), *short])]


TURNS = "The ranks wait 40 % of the step time for the slowest of them"
START = "The other ranks wait 60.0 ms per step (60 %) for"
MORE = "spends 60.0 ms more than they do"


@pytest.mark.parametrize(
    ("world", "did", "expected", "rank"),
    [
        (3, alone(WRITE), f"{START} rank 0, which {MORE} in write samples.", 0),
        (3, alone(HOLE), f"{START} rank 0, which {MORE} under no stage.", 0),
        (3, in_pieces, f"{START} rank 0.", 0),
        (3, hidden, f"{START} rank 0.".replace("60 %", "57 %"), 0),
        (4, both, f"{START} ranks 0 and 1, which spend 60.0 ms more than they do in write samples.", 0),
        (4, in_groups, f"{START} rank 0, which {MORE} in write samples.", 0),
        (3, in_turn, f"{TURNS}, now one rank, now another.", None),
        (3, uneven, f"{TURNS}.".replace("40", "32"), None),
    ],
    ids=["a stage", "no stage", "pieces", "hidden", "two ranks", "groups", "in turn", "hidden waits"],
)  # fmt: skip
def test_for_whom_the_ranks_wait(tmp_path: Path, world: int, did: Step, expected: str, rank: int | None) -> None:
    """Whatever it does meanwhile: one rank again and again is never called now one, now another."""
    found = judged(tmp_path, world, did)[0]
    assert (expected, rank) == (found.sentence, (found.values.get("ranks") or [None])[0])


def test_for_whom_ranks_wait_where_not_all_waits_are_known(tmp_path: Path) -> None:
    """Rank 0 makes up half of all that rank 1 may wait; where more may be waits, nobody is named."""

    def late_once(rank: int, number: int) -> list[Did]:
        return many(number, *([] if rank else [Did(WRITE, 60)]), waits_ms=60 * rank)

    def by_turns(rank: int, number: int) -> list[Did]:
        met = [Met(6 - 5 * (place % 2 == rank), 100 * number + place) for place in range(100)]
        return [Did(v.FORWARD, 30), *([] if rank else [Did(WRITE, 20)]), Did(v.OPTIMIZER, 0, met)]

    named = f"The other ranks wait at least 60.0 ms per step (60 %) for rank 0, which {MORE} in write samples."
    found = [judged(tmp_path / did.__name__, 2, did)[0] for did in (late_once, by_turns)]
    assert (named, [0], "largest") == (found[0].sentence, found[0].values["ranks"], found[1].rule)


def test_the_step_that_is_left_aside_holds_nobody_up(tmp_path: Path) -> None:
    """Rank 1 writes for 2 s once; in all other steps it is rank 0 that the others wait for."""

    def did(rank: int, number: int) -> list[Did]:
        last, ms = (1, 2_000) if number == 5 else (0, 60)
        return late(number, *([Did(WRITE, ms)] if rank == last else []), waits_ms=ms * (rank != last))

    assert [
        f"{START} rank 0, which {MORE} in write samples.",
        "Step 5 is left aside: it took 2.04 s, 20.4 times the median, above all in rl.train.optimizer.",
    ] == [one.sentence for one in judged(tmp_path, 3, did)]
