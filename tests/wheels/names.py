"""Whether the source of a package defines a name, without importing it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator

Source = Callable[[str], str]
"""Module to text, empty where there is no such module."""


def defines(source: Source, target: str) -> bool:
    """Say whether ``"package.module:Class.method"`` exists.

    A module may have a name from another that it imports it from, and a class a method from its bases or, where it is
    a dataclass, its ``__init__`` from there.
    """
    module, _, path = target.partition(":")
    outer, _, name = path.rpartition(".")
    body = _statements(source(module))
    if any((outer or name) in _names(statement) for statement in body):
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == outer]
        return not outer or any(_has(source, module, cls, name) for cls in classes)
    return any(defines(source, f"{home}.{name}" if outer else home) for home in _homes(module, body, outer or name))


def _has(source: Source, module: str, cls: ast.ClassDef, name: str) -> bool:
    bases = [base.id for base in cls.bases if isinstance(base, ast.Name) and base.id != cls.name]
    own = any(name in _names(inner) for inner in _below(cls.body))
    own = own or (name == "__init__" and any(_makes_init(decorator) for decorator in cls.decorator_list))
    return own or any(defines(source, f"{module}:{base}.{name}") for base in bases)


def _makes_init(decorator: ast.expr) -> bool:
    """Say whether a decorator is ``dataclass`` and does not say ``init=False``."""
    call, said = decorator, []
    if isinstance(decorator, ast.Call):
        call, said = decorator.func, decorator.keywords
    no_init = any(word.arg == "init" and ast.unparse(word.value) == "False" for word in said)
    return ast.unparse(call) in ("dataclass", "dataclasses.dataclass") and not no_init


def _homes(module: str, body: tuple[ast.stmt, ...], name: str) -> Iterator[str]:
    """Give the targets that a name may be imported from."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    yield from (f"{home}:{alias.name}" for home in _absolute(module, statement))


def _absolute(module: str, statement: ast.ImportFrom) -> set[str]:
    """Give what a module means by another's name; by a relative one, it may itself be a package."""
    named = statement.module or ""
    parts = module.split(".")
    outside = {".".join(parts[: len(parts) - up]) for up in (statement.level, statement.level - 1)}
    return {f"{above}.{named}".strip(".") for above in outside} - {module} if statement.level else {named}


@functools.lru_cache(maxsize=8)
def _statements(text: str) -> tuple[ast.stmt, ...]:
    return tuple(_below(ast.parse(text).body))


def _below(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Give statements, also those below ``if`` and ``try``."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try)):
            yield from _below(statement.body + statement.orelse)
            for handler in getattr(statement, "handlers", ()):
                yield from _below(handler.body)


def _names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}
