"""Tests of the public surface: it is small and stays so."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import otel_rl

PUBLIC = [
    "Carrier",
    "ConfigurationError",
    "NotPossibleError",
    "__version__",
    "flush",
    "instrument",
    "observe",
    "on_finding",
    "read",
    "record",
    "request",
    "sample",
    "stage",
    "step",
    "tool",
    "trajectory",
    "turn",
    "uninstrument",
]
PACKAGE = Path(otel_rl.__file__).parent


def test_the_public_names_are_these() -> None:
    """A new one is a decision, a missing one breaks programs."""
    assert PUBLIC == otel_rl.__all__ == dir(otel_rl) == sorted(otel_rl._HOME)


SURFACE = ("otel_rl.testing", "otel_rl.integrations.integration", "otel_rl.hooks.hook")
"""Modules that an integration outside of the package uses, as far as they exist."""


def surface() -> Iterator[tuple[str, object]]:
    """Yield all classes and functions that users call or subclass."""
    yield from ((name, getattr(otel_rl, name)) for name in PUBLIC if name != "__version__")
    for module in filter(find_spec, SURFACE):
        for name, value in vars(import_module(module)).items():
            is_ours = getattr(value, "__module__", None) == module and not name.startswith("_")
            if is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
                yield name, value


def test_the_public_surface_has_docstrings() -> None:
    """Functions, classes, and the public methods of these; internal functions need none."""
    without = [
        f"{name}.{inner}" if inner else name
        for name, value in surface()
        for inner, part in [("", value), *(vars(value).items() if inspect.isclass(value) else ())]
        if not inner.startswith("_") and (callable(part) or isinstance(part, property)) and not inspect.getdoc(part)
    ]
    assert [] == without


def test_what_is_not_public_is_not_there() -> None:
    """With the usual error."""
    with pytest.raises(AttributeError, match="module 'otel_rl' has no attribute 'watch'"):
        otel_rl.watch  # type: ignore[attr-defined]  # noqa: B018


SIGNATURES = {
    name: str(inspect.signature(getattr(otel_rl, name)))
    for name in ("flush", "instrument", "observe", "read", "record", "stage", "step", "uninstrument")
}
"""As programs have them: a test's ``flush`` waits for longer."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("instrument", "(integrations: 'Iterable[str] | None' = None) -> 'None'"),
        ("uninstrument", "() -> 'None'"),
        ("flush", "(timeout_s: 'float' = 2.0) -> 'bool'"),
        ("observe", "(*, model: 'Any' = None, batch: 'Mapping[str, Any] | None' = None) -> 'None'"),
        ("read", "(run: 'str | os.PathLike[str] | None' = None) -> 'RunTables'"),
        ("record", "(name: 'str', value: 'Any') -> 'None'"),
        ("stage", "(name: 'str', /, **attributes: 'Any') -> 'Stage'"),
        ("step", "(number: 'int') -> 'None'"),
    ],
)
def test_signatures_are_frozen(name: str, expected: str) -> None:
    """Programs call them like this."""
    assert expected == SIGNATURES[name]


def test_errors_are_of_the_kinds_that_programs_catch() -> None:
    """A bad setting is a ValueError, what cannot be done a RuntimeError."""
    assert (True, True) == (
        issubclass(otel_rl.ConfigurationError, ValueError),
        issubclass(otel_rl.NotPossibleError, RuntimeError),
    )


def test_the_user_code_of_the_type_check_uses_every_public_name() -> None:
    """``scripts/check`` runs mypy over it."""
    tree = ast.parse((Path(__file__).parent / "typing" / "api.py").read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "otel_rl"
    }
    assert PUBLIC == sorted(used)


@pytest.mark.medium
def test_only_the_guard_catches_everything() -> None:
    """An ``except Exception`` elsewhere would hide errors from it."""
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
        and not any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
    ]
    assert {"guard.py"} == set(found)
