"""Takes groups."""

from typing import Any


class TrainSink:
    def _admit(self, group: Any) -> Any:
        return bool(group)
