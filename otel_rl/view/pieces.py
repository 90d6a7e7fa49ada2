"""A page in pieces, each with the version of the page in which it changed last."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from otel_rl.report.page.document import PageParts

Key = tuple[str, ...]
APART = frozenset(("document", "places", "timelines"))
"""Of the data of a page, what is more than one piece."""


@dataclass
class Pieces:
    """What a browser may have of a page. One that has an older structure, or that of another epoch, loads it anew."""

    epoch: str = field(default_factory=lambda: secrets.token_hex(4))
    version: int = 0
    _values: dict[Key, tuple[int, Any]] = field(default_factory=dict)
    _born: dict[str, int] = field(default_factory=dict)
    """The version in which each model came."""

    def update(self, parts: PageParts, *, is_whole: bool = True) -> None:
        """Take parts of a page; of a page that is not whole, what is missing stays as it was."""
        new = dict(_pieces(parts))
        if is_whole:
            new["structure",] = [list(parts.body), list(parts.data.get("places", ()))]
            gone = [key for key in self._values if key[0] == "timeline" and key not in new]
            self._values = {key: value for key, value in self._values.items() if key not in gone}
        kinds = {key: value for key, value in new.items() if key[0] in ("kind", "structure")}
        if any(key in self._values and self._values[key][1] != value for key, value in kinds.items()):
            if not is_whole:
                return
            self.epoch, self._values, self._born = secrets.token_hex(4), {}, {}
        self.version += 1
        for key, value in new.items():
            known = self._values.get(key)
            if known is None or known[1] != value:
                self._values[key] = self.version, value
            if key[0] == "kind":
                self._born.setdefault(key[1], self.version)

    def since(self, version: int) -> dict[str, Any]:
        """Return what changed after a version: parts of the body, changes of models as Bokeh reads them, and data."""
        html: dict[str, str] = {}
        data: dict[str, Any] = {}
        timelines: list[Any] = []
        events: list[Any] = []
        told: set[str] = set()
        changes = [(changed, key, value) for key, (changed, value) in self._values.items() if changed > version]
        for _, key, value in sorted(changes, key=itemgetter(0)):  # a figure may be newer than its panel, or older
            if key[0] == "html":
                html[key[1]] = value
            elif key[0] == "timeline":
                timelines.append(value)
            elif key[0] == "data":
                data[key[1]] = value
            elif key[0] == "model" and self._born[key[1]] <= version:
                new = self._whole(value, version, told)
                events.append({"kind": "ModelChanged", "model": {"id": key[1]}, "attr": key[2], "new": new})
        return {
            "epoch": self.epoch, "version": self.version, "html": html, "events": events,
            "data": data, "timelines": timelines,
        }  # fmt: skip

    def _whole(self, value: Any, version: int, told: set[str]) -> Any:
        """Return a value with the models in it that a browser of a version does not know."""
        if isinstance(value, list):
            return [self._whole(one, version, told) for one in value]
        if not isinstance(value, dict):
            return value
        name = value.get("id")
        if len(value) > 1 or name is None or self._born[name] <= version or name in told:
            return {key: self._whole(one, version, told) for key, one in value.items()}
        told.add(name)
        own = {key[2]: one for key, (_, one) in self._values.items() if key[:2] == ("model", name)}
        attributes = {key: self._whole(one, version, told) for key, one in own.items()}
        return {"type": "object", "name": self._values["kind", name][1], "id": name, "attributes": attributes}


def _pieces(parts: PageParts) -> Iterator[tuple[Key, Any]]:
    for name, html in parts.body.items():
        yield ("html", name), html
    for one in parts.data.get("timelines", ()):
        yield ("timeline", one["attempt"], str(one["step"])), one
    for name, value in parts.data.items():
        if name not in APART:
            yield ("data", name), value
    for root in parts.data.get("document", {}).get("roots", ()):
        found: dict[Key, Any] = {}
        _take_apart(root, found)
        yield from found.items()


def _take_apart(value: Any, found: dict[Key, Any]) -> Any:
    """Add the attributes of each model in a value, and return it with references in place of models."""
    if isinstance(value, list):
        return [_take_apart(one, found) for one in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("type") != "object":
        return {key: _take_apart(one, found) for key, one in value.items()}
    name = value["id"]
    found["kind", name] = value["name"]
    for attribute, one in value["attributes"].items():
        found["model", name, attribute] = _take_apart(one, found)
    return {"id": name}
