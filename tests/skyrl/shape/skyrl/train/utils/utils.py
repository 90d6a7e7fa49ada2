"""The timer that brackets the parts of a step."""

from __future__ import annotations

import time
from typing import Any


class Timer:
    def __init__(self, message: str, update_dict: dict | None = None) -> None:
        self.message, self.update_dict = message, update_dict

    def __enter__(self):
        self.start_time = time.time()
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any):
        if self.update_dict is not None:
            self.update_dict[self.message] = time.time() - self.start_time

    async def __aenter__(self):
        return self.__enter__()

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any):
        self.__exit__(exc_type, exc_val, exc_tb)
