"""A tracker that keeps what it gets."""

from __future__ import annotations


class Tracking:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict]] = []

    def log(self, data: dict, step: int, commit: bool = False):
        self.logged.append((step, data))
