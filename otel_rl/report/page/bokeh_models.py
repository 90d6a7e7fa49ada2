"""The models of BokehJS as it reads them, without the Python package, which takes seconds to import and to write them.

tests/report/page/test_draw.py reads what is written here by that package, so that a wrong name fails there.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

SCRIPT: Final = ("static", "js", "bokeh.min.js")


class Model:
    """A model of BokehJS, with the attributes that differ from its defaults."""

    def __init__(self, kind: str, **attributes: Any) -> None:
        self.kind, self.attributes = kind, attributes
        self.shared = ""
        """The id of one that several roots have; empty if it is numbered as the others are."""


@dataclass(frozen=True, slots=True)
class ByRow:
    """The column of a source that a glyph takes its values from."""

    name: str

    def to_json(self) -> dict[str, Any]:
        return {"type": "field", "field": self.name}


@dataclass(frozen=True, slots=True)
class Fixed:
    """One value for all of a glyph, where it could take a column."""

    value: Any

    def to_json(self) -> dict[str, Any]:
        return {"type": "value", "value": self.value}


def source(columns: Mapping[str, Any], **attributes: Any) -> Model:
    """Make columns of equal length that glyphs are drawn from."""
    selected = Model("Selection", indices=[], line_indices=[])
    return Model(
        "ColumnDataSource",
        data=dict(columns),
        selected=selected,
        selection_policy=Model("UnionRenderers"),
        **attributes,
    )


def renderer(glyph: Model, of: Model) -> Model:
    """Make what draws a glyph for each row of a source; a selection changes nothing."""
    view = Model("CDSView", filter=Model("AllIndices"))
    return Model("GlyphRenderer", data_source=of, view=view, glyph=glyph, nonselection_glyph=None)


class Document:
    """Writes models: each once, and by its id where it is used again.

    An id is a number below the name of the root, so that one more model in a root changes no ids of others.
    """

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
        self._kept: list[Model] = []
        self._root = ""
        self._counts: Counter[str] = Counter()

    def to_json(self, roots: list[Model]) -> dict[str, Any]:
        config = self._write(Model("DocumentConfig"))
        return {"version": _bokeh_version(), "title": "", "config": config, "roots": [*map(self._write_root, roots)]}

    def id_of(self, model: Model) -> str:
        """Return the id of a model that was written."""
        return self._ids[id(model)]

    def _write_root(self, root: Model) -> Any:
        self._root = root.attributes.get("name", "")
        return self._write(root)

    def _write(self, value: Any) -> Any:
        if isinstance(value, Model | ByRow | Fixed):
            return self._model(value) if isinstance(value, Model) else value.to_json()
        if isinstance(value, np.ndarray):
            return _array(value)
        if isinstance(value, dict):
            return {"type": "map", "entries": [[self._write(key), self._write(one)] for key, one in value.items()]}
        if isinstance(value, list | tuple):
            return [self._write(one) for one in value]
        if isinstance(value, float) and not math.isfinite(value):
            return {"type": "number", "value": "nan" if math.isnan(value) else f"{'-' * (value < 0)}inf"}
        return value

    def _model(self, model: Model) -> dict[str, Any]:
        known = self._ids.get(id(model))
        if known is not None:
            return {"id": known}
        self._kept.append(model)  # so that no other gets its number
        self._counts[self._root] += 1
        name = self._ids[id(model)] = model.shared or f"{self._root}.{self._counts[self._root]}"
        attributes = {key: self._write(value) for key, value in model.attributes.items()}
        return {"type": "object", "name": model.kind, "id": name, "attributes": attributes}


def _array(values: Any) -> dict[str, Any]:
    data = base64.b64encode(gzip.compress(np.ascontiguousarray(values).tobytes(), mtime=0, compresslevel=6)).decode()
    array = {"type": "bytes", "data": data}
    return {
        "type": "ndarray",
        "array": array,
        "shape": list(values.shape),
        "dtype": str(values.dtype),
        "order": "little",
    }


@cache
def _bokeh_version() -> str:
    return version("bokeh")


def library() -> str:
    """Return BokehJS, which draws."""
    found = find_spec("bokeh")
    assert found is not None and found.origin is not None
    return Path(found.origin).with_name("server").joinpath(*SCRIPT).read_text("utf-8")
