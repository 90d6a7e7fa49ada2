"""Finding names in source that is not imported."""

from __future__ import annotations

import pytest

from tests.wheels.names import defines

SOURCES = {
    "package.one": """
from package.two import Base as Other, helper

if True:
    def function(): ...
else:
    try:
        import nothing
    except ImportError:
        async def coroutine(): ...

alias = function

class Thing(Other):
    def method(self): ...
    same = method
    if True:
        async def later(self): ...

class Child(Thing): ...
@dataclass
class Plain: ...
@dataclasses.dataclass(slots=True)
class Slotted: ...
@dataclass(init=False)
class Bare: ...
class Strange(nobody.Knows, Strange): ...
""",
    "package.two": "class Base:\n    def inherited(self): ...\ndef helper(): ...\n",
    "package": "from .one import Thing as Exported\n",
    "package.below.three": "from ..two import Base\nfrom . import four\nfrom .four import nothing\n",
}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("package.one:function", True),
        ("package.one:coroutine", True),
        ("package.one:alias", True),
        ("package.one:Thing", True),
        ("package.one:Thing.method", True),
        ("package.one:Thing.same", True),
        ("package.one:Thing.later", True),
        ("package.one:Thing.inherited", True),
        ("package.one:Child.inherited", True),
        ("package.one:Child.method", True),
        ("package.one:helper", True),
        ("package.one:Other.inherited", True),
        ("package:Exported.inherited", True),
        ("package.below.three:Base.inherited", True),
        ("package.below.three:nothing", False),
        ("package.one:Plain.__init__", True),
        ("package.one:Slotted.__init__", True),
        ("package.one:Bare.__init__", False),
        ("package.one:Plain.method", False),
        ("package.one:Thing.__init__", False),
        ("package.one:method", False),
        ("package.one:Thing.function", False),
        ("package.one:Nothing.method", False),
        ("package.one:Strange.method", False),
        ("package.two:Thing", False),
        ("package.none:function", False),
    ],
)
def test_a_name_is_found_where_it_is_defined(target: str, expected: bool) -> None:
    """In its module, or in the module of a base class."""
    assert expected == defines(lambda module: SOURCES.get(module, ""), target)
