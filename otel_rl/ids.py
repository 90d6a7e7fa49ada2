"""Trace and span ids.

Ids of a step are derived, so that every rank knows them without a message. All others come from a private generator
seeded by the operating system. The SDK's generator draws from ``random``, which belongs to the training program and
which ranks often seed alike: they would get equal ids.
"""

from __future__ import annotations

import hashlib
import os
import random
import uuid

_generator = random.Random(os.urandom(32))
random_bits = _generator.getrandbits
"""``random_bits(64)`` is a fresh span id. Cost: 0.06 us."""

NAMESPACE = uuid.UUID("5a3e6f0c-6d0b-5c0e-9c67-0f3c1d8a7b21")


def reseed() -> None:
    """Seed the generator anew in a forked child; else parent and child would draw the same ids."""
    _generator.seed(os.urandom(32))


def attempt_id() -> str:
    """Make the random id of one start of the job, 16 hex digits."""
    return f"{random_bits(64):016x}"


def trace_id(attempt: str, loop: str, number: int | str) -> int:
    """Derive the trace id of a step, equal on every rank of the attempt; or of a rollout, by the key of its prompt."""
    text = f"trace {attempt} {loop} {number}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")


def root_id(attempt: str, loop: str, number: int | str) -> int:
    """Derive the span id of a step's root, so that other ranks can hang below a span that only one of them emits."""
    text = f"root {attempt} {loop} {number}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def idle_id(trace: bytes, collective: bytes) -> int:
    """Derive the span id of a rank's wait in a collective; whoever computes the wait again makes the same span."""
    return int.from_bytes(hashlib.blake2b(b"idle" + trace + collective, digest_size=8).digest(), "big")


def instance_id(*parts: object) -> str:
    """Derive ``service.instance.id`` (UUIDv5) from what identifies a process of an attempt."""
    return str(uuid.uuid5(NAMESPACE, " ".join(map(str, parts))))
