"""What a user may pass as an attribute becomes what OTLP can carry, without touching a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.process.state import state
from otel_rl.records import Count, Value

Text = TypeVar("Text", str, bytes | bytearray)
Item = TypeVar("Item")

PLAIN = frozenset((str, bool, int, float))
NUMBERS = frozenset((bool, int, float))
"""What needs no cleaning at all; the hot path looks here before it calls ``clean``."""
MAX_ITEMS = 128
"""Items of a collection that are kept."""
MAX_LENGTH = 65_536
"""Characters of a string that are kept while it waits for the encoder, which cuts it to the configured length."""
MAX_DEPTH = 2
"""Collections inside collections that are read; what lies deeper is named by its type."""
MAX_KEYS = 1024


class Keys(dict[str, str]):
    """Attribute keys by the keywords of ``stage``."""

    def __missing__(self, key: str) -> str:
        name = key if key.startswith("rl.") else f"rl.{key}"
        if len(self) < MAX_KEYS:
            self[key] = name
        return name


KEYS = Keys()
"""Keyword to attribute key; a dict, because a call costs more than all else that ``stage`` does with an attribute."""


def clean(value: Any) -> Value | None:
    """Turn any object into an attribute value; None if there is none.

    A tensor on a device is described, never read: reading it would wait for the device. An object whose conversion
    fails is described by its type. Cost: 0.1 us for str, bool, int and float.
    """
    kind = type(value)
    if kind in PLAIN:
        if kind is str and len(value) > MAX_LENGTH:
            value = _cut(value)
        plain: Value = value
        return plain
    with guard("read an attribute value"):
        return _convert(value)
    return f"<{kind.__name__}>"


def clean_all(attributes: Mapping[Any, Any] | None) -> dict[str, Value]:
    """Clean every value of a mapping; pairs without a value or a name are left out."""
    cleaned = {clean_key(key): clean(value) for key, value in (attributes or {}).items()}
    return {key: value for key, value in cleaned.items() if key and value is not None}


def clean_key(key: Any) -> str:
    """Turn what should be a name into one; None and what cannot be read have none.

    What is cut here the encoder cuts again, and counts.
    """
    if type(key) is str:
        return key[:MAX_LENGTH]
    with guard("read a name"):
        return "" if key is None else str(key)[:MAX_LENGTH]
    return ""


def _convert(value: Any, depth: int = MAX_DEPTH) -> Value | None:
    if value is None:
        return None
    if isinstance(value, (int, float)):  # numpy's float64 and enumerations among them
        return float(value) if isinstance(value, float) else int(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value)
    if isinstance(value, (list, tuple, Set)):
        return _collection(value, depth)
    if isinstance(value, (bytes, bytearray)):
        value = _cut(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        value = {clean_key(key): _item(item, depth) for key, item in _some(value.items(), len(value))}
    elif _holds_remote(value):
        return f"<{type(value).__name__}>"  # its text would be that of the tensor
    return _cut(str(value))


def _holds_remote(value: Any) -> bool:
    """Return whether an object has a tensor of a device; a dataclass prints what it has."""
    fields = getattr(value, "__dict__", None)
    tensors = (one for one in fields.values() if hasattr(one, "element_size")) if isinstance(fields, dict) else ()
    return not all(map(is_on_host, tensors))


def is_on_host(value: Any) -> bool:
    """Return whether a tensor or an array is on the host; to read another one waits for its device.

    Torch's devices have a type, JAX's a platform, and numpy's is a text.
    """
    device = getattr(value, "device", None)
    kind = getattr(device, "type", None) or getattr(device, "platform", device)
    return device is None or str(kind) == "cpu"


def _item(value: Any, depth: int) -> Value | None:
    """Clean what is inside a collection; only so deep, since a list may hold itself."""
    if not isinstance(value, (list, tuple, Set, Mapping)):
        return clean(value)
    with guard("read an attribute value"):
        if depth > 1:
            return _convert(value, depth - 1)
    return f"<{type(value).__name__}>"


def _collection(items: list[Any] | tuple[Any, ...] | Set[Any], depth: int) -> Value:
    """OTLP arrays may be mixed, but attribute values may not: a mixed list becomes strings."""
    found = (_item(item, depth) for item in _some(items, len(items)))
    values = [value for value in found if value is not None]
    if len({type(value) for value in values}) > 1 or any(isinstance(value, list) for value in values):
        return [_cut(str(value)) for value in values]
    return values


def _some(items: Iterable[Item], number: int) -> Iterator[Item]:
    if number > MAX_ITEMS:
        _changed("items_cut")
    return itertools.islice(items, MAX_ITEMS)


def _cut(text: Text) -> Text:
    if len(text) > MAX_LENGTH:
        _changed("huge_text_cut")
    return text[:MAX_LENGTH]


def _changed(reason: str) -> None:
    """Count what the encoder cannot know of. Cost: 0.4 us, only where something is cut."""
    if state.on:
        state.add(Count(vocabulary.SELF_CHANGED, 1, ((vocabulary.REASON, reason),)))


def _array(value: Any) -> Value:
    """Read numpy arrays and host tensors of up to 128 items; describe everything else."""
    device = getattr(value, "device", None)
    size = 1
    for length in value.shape:
        size *= int(length)
    is_small = size <= MAX_ITEMS and is_on_host(value)
    if is_small and not (getattr(value, "requires_grad", False) or hasattr(value, "placements")):
        plain = value.tolist()
        return _collection(plain, MAX_DEPTH) if isinstance(plain, list) else clean(plain) or plain
    return (
        f"{type(value).__name__}(shape={tuple(map(int, value.shape))}, dtype={value.dtype}, device={device or 'cpu'})"
    )
