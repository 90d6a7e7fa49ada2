"""Tests of trace and span ids."""

from __future__ import annotations

import os
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl import ids
from otel_rl.process import state

TEXT = st.text(st.characters(categories=["L", "N", "Cs"]), max_size=20)


@given(TEXT, TEXT, st.integers(0, 1 << 40))
def test_derived_ids_fit_and_repeat(attempt: str, loop: str, number: int) -> None:
    """A trace id has 128 bits, a span id 64; the same question has the same answer."""
    trace, root = ids.trace_id(attempt, loop, number), ids.root_id(attempt, loop, number)
    assert (trace, root) == (ids.trace_id(attempt, loop, number), ids.root_id(attempt, loop, number))
    assert (0, 0) == (trace >> 128, root >> 64)


def test_derived_ids_are_the_same_in_every_version() -> None:
    """Ranks of one job may run different builds: these values never change."""
    assert (0x25E1DC7AF59880A1C0B24479243D4C4A, 0xFD94B3858A028CD6, "aab94eff-db87-5749-9835-40dedbe8acd3") == (
        ids.trace_id("abc", "train", 7),
        ids.root_id("abc", "train", 7),
        ids.instance_id("abc", "trainer", 1, 5, 6),
    )


def test_steps_loops_and_attempts_are_told_apart() -> None:
    """No two of them share an id."""
    keys = [(a, loop, n) for a in ("a", "b") for loop in ("train", "train.2", "rl.setup") for n in range(100)]
    assert len(keys) == len({ids.trace_id(*key) for key in keys}) == len({ids.root_id(*key) for key in keys})


def test_the_programs_random_numbers_are_untouched() -> None:
    """Neither is its generator drawn from, nor does its seed decide our ids."""
    random.seed(1)
    first, before = ids.random_bits(64), random.getstate()
    ids.attempt_id()
    ids.reseed()
    assert before == random.getstate()
    random.seed(1)
    assert first != ids.random_bits(64)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_other_ids() -> None:
    """Its generator is seeded anew."""
    assert callable(state.after_fork_in_child)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(ids.random_bits(64)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert theirs != ids.random_bits(64)


def test_an_attempt_is_16_hex_digits_and_an_instance_a_uuid() -> None:
    """As other tools expect them."""
    attempt = ids.attempt_id()
    assert (16, 5) == (len(attempt), uuid.UUID(ids.instance_id(attempt, 0)).version)
    assert int(attempt, 16) >= 0
