"""Tests of what becomes of attribute values."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otel_rl
from otel_rl import guard, vocabulary
from otel_rl.records import Value
from otel_rl.trace import values
from otel_rl.trace.values import clean, clean_all, clean_key
from tests.fixtures import Recording


class Color(enum.IntEnum):
    """An integer with a name."""

    RED = 3


class Word(str):
    """A string that is more than one."""


class Odd:
    """Its text cannot be read."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        (True, True),
        (-7, -7),
        (1.5, 1.5),
        (math.inf, math.inf),
        (1 << 63, 1 << 63),
        (None, None),
        (Color.RED, 3),
        (Word("w"), "w"),
        (b"ab\xff", "ab\ufffd"),
        (bytearray(b"ab"), "ab"),
        ([1, 2], [1, 2]),
        ((1.5, 2.5), [1.5, 2.5]),
        ({"x"}, ["x"]),
        ([], []),
        ([1, None, 2], [1, 2]),
        ([1, "a", True], ["1", "a", "True"]),
        ([[1, 2], [3]], ["[1, 2]", "[3]"]),
        ([[[1]]], ["['<list>']"]),
        ({"a": 1, "b": [1, 2]}, "{'a': 1, 'b': [1, 2]}"),
        ({5: {"c": {}}}, "{'5': \"{'c': '<dict>'}\"}"),
        (1 + 2j, "(1+2j)"),
        (range(3), "range(0, 3)"),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(5), 5),
        (np.uint64(1 << 63), 1 << 63),
        (np.bool_(False), False),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        (np.array([1, 2]), [1, 2]),
        (np.array([[1], [2]]), ["[1]", "[2]"]),
        (np.array(0.0), 0.0),
        (np.array([]), []),
        (np.zeros(129), "ndarray(shape=(129,), dtype=float64, device=cpu)"),
    ],
)
def test_any_value_becomes_one_that_otlp_has(value: Any, expected: Value | None) -> None:
    """Numbers stay numbers, lists of one kind stay lists, everything else becomes text."""
    found = clean(value)
    assert (type(expected), expected) == (type(found), found)


def test_nan_stays() -> None:
    """It says something."""
    assert math.isnan(clean(math.nan))  # type: ignore[arg-type]
    assert math.isnan(clean(np.float32("nan")))  # type: ignore[arg-type]


@pytest.mark.guarded
def test_what_cannot_be_read_is_named_by_its_type() -> None:
    """The error is ours to count, not the host's to see."""
    assert ("<Odd>", ["<Odd>"], "{'k': '<Odd>'}") == (clean(Odd()), clean([Odd()]), clean({"k": Odd()}))
    assert {"read an attribute value": 3} == guard.errors


def test_a_collection_that_holds_itself_ends() -> None:
    """Nested ones are read two deep, however deep they are."""
    loop: list[Any] = []
    loop.append(loop)
    knot: dict[str, Any] = {}
    knot["k"] = knot
    assert (["['<list>']"], "{'k': \"{'k': '<dict>'}\"}") == (clean(loop), clean(knot))
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert ["['<list>']"] == clean(deep)


def test_large_values_are_cut() -> None:
    """Before they wait for the encoder, so that they do not fill the memory."""
    big = "x" * 50_000_000
    sizes = (clean(big), clean(Word(big)), clean(big.encode()), clean({"k": big}), clean_key(big))
    assert [values.MAX_LENGTH] * 5 == [len(text) for text in sizes]  # type: ignore[arg-type]
    assert 128 == len(clean(list(range(10_000))))  # type: ignore[arg-type]


def test_what_is_cut_is_counted(recording: Recording) -> None:
    """Each once, whatever the encoder cuts of it later; what fits counts nowhere."""
    with otel_rl.step(1), otel_rl.stage("tool") as stage:
        for size in (values.MAX_LENGTH, values.MAX_LENGTH + 1):
            text = "x" * size
            for key, value in {"text": text, "bytes": text.encode(), "word": Word(text), "list": [text]}.items():
                stage.set_attribute(key, value)
        for size in (values.MAX_ITEMS, values.MAX_ITEMS + 1):
            stage.set_attribute("items", list(range(size)))
            stage.set_attribute("pairs", dict.fromkeys(range(size)))
    changed = {p.attributes[vocabulary.REASON]: p.value for p in recording.stop().last_points(vocabulary.SELF_CHANGED)}
    assert {"huge_text_cut": 4, "items_cut": 2, "text_cut": 4} == changed


def test_keys_are_names() -> None:
    """What is no name is left out, what is no string becomes one."""
    assert {"a": 1, "5": 2, "(1, 2)": 5} == clean_all({"a": 1, 5: 2, None: 3, "": 4, (1, 2): 5, "n": None})
    assert {} == clean_all(None)


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_tensors_are_read_only_where_nothing_waits() -> None:
    """Small ones on the host are numbers; others, and those of another device, are described."""
    torch = pytest.importorskip("torch")
    grad = torch.tensor([1.0], requires_grad=True)
    meta = torch.empty(2, 3, device="meta")
    assert (2.5, [1, 2], True) == (
        clean(torch.tensor(2.5)),
        clean(torch.tensor([1, 2])),
        clean(torch.tensor(True)),
    )
    assert "Tensor(shape=(2, 3), dtype=torch.float32, device=meta)" == clean(meta)
    assert "Tensor(shape=(1,), dtype=torch.float32, device=cpu)" == clean(grad)
    assert "Tensor(shape=(1000,), dtype=torch.float32, device=cpu)" == clean(torch.zeros(1000))
    assert ["torch.bfloat16", "cpu"] == clean([torch.bfloat16, torch.device("cpu")])
    assert [1, 2] == clean(torch.Size([1, 2]))


class OnDevice:
    """A tensor whose reading would wait."""

    device = "cuda:0"
    dtype = "float32"
    shape = (2,)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")

    __repr__ = __str__ = __iter__ = __len__ = lambda self: pytest.fail("read")  # type: ignore[assignment]


def test_a_tensor_on_a_device_is_never_read() -> None:
    """Neither alone nor inside a collection."""
    text = "OnDevice(shape=(2,), dtype=float32, device=cuda:0)"
    tensor: Any = OnDevice.__new__(OnDevice)
    type(tensor).requires_grad = False  # type: ignore[attr-defined]
    assert (text, [text], f"{{'k': '{text}'}}") == (clean(tensor), clean([tensor]), clean({"k": tensor}))


@dataclass
class Batch:
    """What a user might hand over."""

    ids: Any


def test_an_object_with_a_tensor_of_a_device_is_not_printed() -> None:
    """Its text is that of the tensor."""
    tensor = Mock(device="cuda:0")
    tensor.__repr__ = lambda self: pytest.fail("read")
    assert ("<Batch>", "Batch(ids=1)") == (clean(Batch(tensor)), clean(Batch(1)))


def test_a_distributed_tensor_is_described() -> None:
    """To read one is a collective."""
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2)
    tensor.placements = ()  # type: ignore[attr-defined]
    assert "Tensor(shape=(2,), dtype=torch.float32, device=cpu)" == clean(tensor)


# --- through the journal ----------------------------------------------------------------------------------------------

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ANYTHING = st.recursive(
    PLAIN | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


def is_value(value: object, depth: int = 0) -> bool:
    """Whether it is what ``records.Value`` promises."""
    if isinstance(value, list):
        return depth == 0 and len({type(item) for item in value}) <= 1 and all(is_value(item, 1) for item in value)
    return type(value) in (str, bool, int, float)


@pytest.mark.medium
@settings(max_examples=200)
@given(ANYTHING)
def test_the_result_is_always_a_value(value: Any) -> None:
    """For whatever nesting of whatever plain things."""
    found = clean(value)
    assert found is None or is_value(found)


@settings(max_examples=40)
@given(ANYTHING)
def test_cleaning_twice_changes_nothing(value: Any) -> None:
    """A cleaned value is clean."""
    once = clean(value)
    assert repr(once) == repr(clean(once))


@pytest.mark.guarded
def test_no_value_takes_another_span_with_it(recording: Recording) -> None:
    """Whatever is set, every span of the batch arrives, with every other attribute."""
    torch = pytest.importorskip("torch")
    strange = {
        "surrogate": "a\ud800b",
        "huge": 1 << 64,
        "negative": -(1 << 63) - 1,
        "long": "x" * 50_000_000,
        "nan": math.nan,
        "odd": Odd(),
        "none": None,
        "nested": [[1, [2]], "x"],
        "dict": {"a": {"b": 1}},
        "bytes": b"\xff",
        "meta": torch.empty(3, device="meta"),
        "grad": torch.ones(1, requires_grad=True),
        "half": torch.tensor(1.5, dtype=torch.bfloat16),
        "numpy": np.float16(1.5),
        "key\ud800": 1,
        "rl.mode": ["a", "list"],
        "rl.reward.function": {"a": 1},
        "": 1,
    }
    with otel_rl.step(1):
        for name, value in strange.items():
            with otel_rl.stage("own " + name) as span:
                span.set_attribute(name, value)
                span.set_attribute("fine", 1)
        with otel_rl.stage("own all") as span:
            span.set_attributes(strange)
            span.add_event("event\ud800", strange)
        for i in range(200):
            span = otel_rl.stage(f"own many {i % 3}")
            with span:
                span.set_attributes({f"k{j}": j for j in range(i)})
    found = [span for span in recording.stop().spans(None) if span.name.startswith("own ")]
    assert len(strange) + 1 + 200 == len(found)
    alone = {span.name: span.attributes for span in found}
    assert {1} == {span.attributes["fine"] for span in found if "many" not in span.name and span.name != "own all"}
    assert ("a\ufffdb", str(1 << 64), 2048) == (
        alone["own surrogate"]["surrogate"],
        alone["own huge"]["huge"],
        len(alone["own long"]["long"]),  # type: ignore[arg-type]
    )
    assert ("a", "list") == alone["own rl.mode"]["rl.mode"]
