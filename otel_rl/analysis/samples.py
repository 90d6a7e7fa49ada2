"""Single samples in the correctness ledger: what is noted of each at a boundary, and what two boundaries disagree about.

The processes of a step see different parts of a batch in different orders. So each sample is compared with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl.analysis.checksums import MaskSums, TokenSums
from otel_rl.analysis.ledger import Fault, Passage, check

NUMBERS: Final = 9


@dataclass(frozen=True, slots=True)
class SampleSums:
    """One sample at one boundary."""

    prompt: int
    """Tokens of the prompt."""
    response: int
    tokens: TokenSums
    """Of prompt and response together; without the order of rows, of which there is one."""
    mask: MaskSums
    """Where the tokens of the response are trained on."""
    columns: int
    """The sum of the mask's true columns, which a change between its first and last one shows."""

    def packed(self) -> tuple[int, ...]:
        """Return the numbers that ``unpacked`` reads."""
        tokens, mask = self.tokens, self.mask
        sums = tokens.plain, tokens.weighted, tokens.tail
        return (self.prompt, self.response, *sums, mask.true, mask.first, mask.last, self.columns)


def unpacked(numbers: Sequence[int]) -> SampleSums:
    """Return the sums of a sample."""
    prompt, response, plain, weighted, tail, true, first, last, columns = numbers
    mask = MaskSums(size=response, true=true, rows=int(true > 0), first=first, last=last)
    return SampleSums(prompt, response, TokenSums(plain, weighted, tail, weighted), mask, columns)


def fault_of(sums: SampleSums) -> Fault | None:
    """Find what is wrong with a sample as it was generated: a response begins with a token of the policy."""
    return Fault.SHIFTED_MASK if sums.mask.rows and sums.mask.first == 1 else None


def fault_between(before: SampleSums, after: SampleSums) -> Fault | None:
    """Find what changed of a sample."""
    if before == after:
        return None
    if (before.prompt, before.response) != (after.prompt, after.response):
        return Fault.SHAPE
    if before.tokens != after.tokens:
        return _fault(*(Passage(step=0, rank=0, boundary="", tokens=one.tokens) for one in (before, after)))
    masks = (Passage(step=0, rank=0, boundary="", mask=one.mask) for one in (before, after))
    return _fault(*masks) or Fault.OTHER_MASK


def _fault(before: Passage[int], after: Passage[int]) -> Fault | None:
    return next((one.fault for one in check([before, after])), None)
