"""Names of vLLM."""

import enum
from types import SimpleNamespace


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(SimpleNamespace):
    pass


class BeamSearchParams(SimpleNamespace):
    pass
