"""Names only: nothing is partitioned."""

from enum import Enum


class ZeroParamStatus(Enum):
    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3
