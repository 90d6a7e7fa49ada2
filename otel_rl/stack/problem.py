"""What keeps the stack from starting, answering or stopping."""

from __future__ import annotations

from collections.abc import Sequence


class StackError(Exception):
    """One sentence that says what is wrong and what to do.

    Attributes:
        lines: the last lines of the log that say more, oldest first; often none.
    """

    def __init__(self, sentence: str, lines: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.lines = tuple(lines)
