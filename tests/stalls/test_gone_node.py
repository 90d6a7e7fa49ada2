"""A node that is gone with its sidecar: another node, which shares the directory, tells of who is missed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.page import BEGAN, HEARTBEAT, STEP, SUFFIX, Page
from otel_rl.stalls.finder import StallFinder
from otel_rl.stalls.sentences import chain_of

S = 1_000_000_000
ME = WriterIdentity.current("trainer", 0, "1")
GONE = replace(ME, writer="trainer-1", host="m", boot_id="m", pid=1)
AGE_S = 700


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Path]:
    """Rank 0, of this node, is in a collective; rank 1 was in no stage of the step when its node fell silent."""
    now, made = time.monotonic_ns(), []
    collective = {v.COMM_OPERATION: "all_reduce", v.COMM_GROUP: "default_pg", v.COMM_SEQUENCE: 7}
    for rank, identity in enumerate((ME, GONE)):
        page = Page(tmp_path / f"{identity.writer}{SUFFIX}")
        page.words[HEARTBEAT] = now - rank * AGE_S * S
        page.words[BEGAN], page.words[STEP] = now - AGE_S * S, 13
        name = v.COMM if rank == 0 else f"{v.CONTAINER}1"
        row = {"name": name, "kind": name, "id": "1" * 16, "parent": "2" * 16, "attributes": collective}
        state: dict[str, Any] = {
            "identity": asdict(identity), "anchor": time.time_ns() - now, "process": "rank", "role": "trainer",
            "rank": rank, "world_size": 2, "attempt": "a", "trace_id": "", "normal": {}, "requests": 0,
            "groups": {"default_pg": (7, (0, 1))},
            "open": [row | dict.fromkeys(("began", "touched"), now - AGE_S * S)],
        }  # fmt: skip
        assert page.write(state)
        page.save()
        made.append(page)
    os.utime(made[1].path, (time.time() - AGE_S,) * 2)
    yield tmp_path
    for page in made:
        page.remove()


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_node_that_is_gone(pages: Path, is_watched: bool) -> None:
    """As long as its sidecar lives, that one tells; else who waits."""
    clock = iter((10.0, 12.0))
    finder = StallFinder(pages, lambda one: one.boot_id == ME.boot_id, is_watched=lambda _: is_watched)
    finder.clock = lambda: next(clock)
    found = [(one.stall.cause, chain_of(one.stall)) for one in [*finder.look(), *finder.look()]]
    chain = (
        "Rank 1 holds everybody up: step 12, in no stage, for 11 min 40 s. The process ended at most "
        "11 min 40 s ago. Rank 0 waits in all_reduce 7 of default_pg in step 12 for 11 min 40 s."
    )
    assert ([] if is_watched else [("dead", chain)]) == found
