"""Takes groups."""

from typing import Any


class TrainSink:
    def __init__(self, on_result: Any) -> None:
        self.on_result = on_result

    def _admit(self, group: Any) -> Any:
        return self.on_result(group) if self.on_result is not None else True
