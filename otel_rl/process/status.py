"""What the threads of this process are in, as its status page shows it: two stores where a stage begins and ends."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass, field
from itertools import count

from otel_rl.journal.page import BEGAN, MOST_NAMES, NUM_WORDS, STAGE, STEP, Page
from otel_rl.process.memory import Memory


class Codes(dict[str, int]):
    """The code of each stage's name; further names than fit on a page have the code 0."""

    def __init__(self) -> None:
        super().__init__()
        self.page: Page | None = None
        self._numbers = count(1)  # two threads may meet a name at once: neither gets the other's number

    def __missing__(self, name: str) -> int:
        if len(self) >= MOST_NAMES:
            return 0
        code = next(self._numbers)
        if code > MOST_NAMES:
            return 0
        self[name] = code  # first: whoever sets the page meanwhile finds it here
        if self.page is not None:
            self.page.name(code, name)
        return code


@dataclass(eq=False)
class ShownStage(Memory):
    """Where the hot path writes: into the page once there is one, into a list until then and in a forked child."""

    words: MutableSequence[int] | memoryview[int] = field(default_factory=lambda: [0] * NUM_WORDS)
    codes: Codes = field(default_factory=Codes)

    def show_on(self, page: Page) -> None:
        """Write into a page from now on."""
        self.codes.page = page
        for name, code in list(self.codes.items()):
            page.name(code, name)
        before, self.words = self.words, page.words
        for at in (STAGE, BEGAN, STEP):
            page.words[at] = before[at]

    def show_step(self, number: int | None) -> None:
        """Show in which step the process is; None: in none."""
        self.words[STEP] = 0 if number is None else (number + 1) % (1 << 64)


status = ShownStage.keep("status")
