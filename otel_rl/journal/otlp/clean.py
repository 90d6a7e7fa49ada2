"""Cleaning: values that OTLP does not take are cut or replaced, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_rl import vocabulary

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as Repeated

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = (1 << 64) - 1
MAX_TEXT: Final = 2048
MAX_ATTRIBUTES: Final = 128
"""Attributes, events and links that are kept of a record."""
MAX_LIST: Final = 1024
TEXTS: Final = {
    *(vocabulary.EXCEPTION_MESSAGE, vocabulary.EXCEPTION_STACKTRACE),
    *(vocabulary.SAMPLE_PROMPT, vocabulary.SAMPLE_RESPONSE),
}
NAMED: Final = vocabulary.ATTRIBUTES.keys() - TEXTS
"""Attributes whose values are names and ids; the text of an exception or a prompt is neither."""

UNENCODABLE: Final = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RuntimeError)
"""Protobuf raises these for a value that does not fit, and an object that is no record raises them.

A RuntimeError means that another thread changes a dict.
"""


class Cleaner:
    """Makes values fit and counts what it had to change."""

    def __init__(self, max_text: int = MAX_TEXT) -> None:
        self.max_text = max_text
        self.max_name = max(max_text, MAX_TEXT)
        """The same of a value by which something is found: the user's limit is for long texts."""
        self.counts: Counter[str] = Counter()
        """Repairs by kind.

        ``text_cut``, ``text_replaced`` (surrogates), ``int_as_text`` (beyond 64 bits), ``list_cut``, ``value_dropped``
        (not an OTLP type), ``attributes_dropped``, ``events_dropped`` (events and links), ``time_clamped``.
        """

    def name(self, value: object) -> str:
        """Make a name or a key fit."""
        return self.text(value, MAX_TEXT)

    def text(self, value: object, limit: int = 0) -> str:
        """Make a string fit; another object is named by its class, since its ``str()`` may do anything."""
        text = value if isinstance(value, str) else f"<{type(value).__name__}>"
        limit = limit or self.max_text
        if len(text) > limit:
            self.counts["text_cut"] += 1
            text = text[:limit]
        try:
            text.encode()
        except UnicodeEncodeError:
            self.counts["text_replaced"] += 1
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def time(self, value: object) -> int:
        if isinstance(value, int) and 0 <= value <= UINT64_MAX:
            return int(value)
        self.counts["time_clamped"] += 1
        return min(max(value, 0), UINT64_MAX) if isinstance(value, int) else 0

    def interval(self, start: object, end: object) -> tuple[int, int]:
        start_ns, end_ns = self.time(start), self.time(end)
        if end_ns >= start_ns:
            return start_ns, end_ns
        self.counts["time_clamped"] += 1
        return start_ns, start_ns

    def fill(self, target: Repeated[KeyValue], attributes: Mapping[Any, Any] | None, *, is_limited: bool = True) -> int:
        """Add attributes to a repeated ``KeyValue``.

        The user's limit of length is for spans and logs, as OpenTelemetry says, and there not for what the vocabulary
        names: ids, roles, models, functions and other values by which something is found.

        Args:
            target: the attributes of the message.
            attributes: what to add.
            is_limited: whether the user's limit holds; False for a resource and for metrics.

        Returns:
            The number of dropped ones: too many, without a key, with a key again, or of a type that OTLP does not have.
        """
        if not attributes:
            return 0
        items = list(attributes.items())
        seen: set[str] = set()
        for raw_key, raw_value in items:
            if len(seen) == MAX_ATTRIBUTES:
                break
            key = self.name(raw_key) if isinstance(raw_key, str) else ""
            if key and key not in seen:
                limit = self.max_text if is_limited and key not in NAMED else self.max_name
                if self._set(target.add(key=key).value, raw_value, limit):
                    seen.add(key)
                else:
                    del target[-1]
        dropped = len(items) - len(seen)
        self.counts["attributes_dropped"] += dropped
        return dropped

    def _set(self, target: AnyValue, value: object, limit: int) -> bool:
        if isinstance(value, bool):
            target.bool_value = value
        elif isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
            target.int_value = value
        elif isinstance(value, float):
            target.double_value = value
        elif isinstance(value, str):
            target.string_value = self.text(value, limit)
        elif isinstance(value, int):
            self.counts["int_as_text"] += 1
            target.string_value = self.text(str(value) if value.bit_length() < self.max_text else hex(value), limit)
        elif isinstance(value, list | tuple):
            self._set_list(target.array_value.values, value, limit)
            target.array_value.SetInParent()
        else:
            target.SetInParent()
            self.counts["value_dropped"] += value is not None
            return value is None
        return True

    def _set_list(self, target: Repeated[AnyValue], elements: list[Any] | tuple[Any, ...], limit: int) -> None:
        """Add the elements of a list; one that is a list itself is dropped."""
        self.counts["list_cut"] += len(elements) > MAX_LIST
        for element in elements[:MAX_LIST]:
            if isinstance(element, list | tuple):
                self.counts["value_dropped"] += 1
            elif not self._set(target.add(), element, limit):
                del target[-1]
