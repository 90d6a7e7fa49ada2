"""How large a file of this process may be: some clusters limit it (``ulimit -f``, RLIMIT_FSIZE)."""

from __future__ import annotations

import sys
from typing import Final

AROUND: Final = 1 << 10
"""Bytes that a segment holds besides one payload: the writer's frame and the heads of both; the former is shorter."""


def largest_file() -> int:
    """Read the limit, bytes; without one, a number that no file reaches. Cost: 0.3 us."""
    try:
        import resource
    except ImportError:  # a platform without limits
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def largest_payload() -> int:
    """How large a payload may be so that a file takes its frame, bytes; more than 0."""
    return max(largest_file() - AROUND, 1)
