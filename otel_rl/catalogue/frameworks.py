"""`docs/frameworks.md`: every package that is recorded, of which versions, what of it, and how that is tested."""

from __future__ import annotations

from typing import Final

from otel_rl.catalogue.markdown import table
from otel_rl.hooks import Integration, Verified
from otel_rl.integrations import OURS, choice

HEAD: Final = """\
# Frameworks

Written by `python -m otel_rl.catalogue` from the integrations.

otel_rl records these packages when your program imports them. The names are those for `OTEL_RL_INTEGRATIONS`.
`otel-rl doctor` says the same of what is installed.

"""
TAIL: Final = """
How an integration is tested:

"""
MEANINGS: Final = {
    Verified.REAL: "the tests train or serve with the package on CPUs, and compare what is recorded with what it did",
    Verified.OWN_CODE: "the tests train a tiny model with the package's own code; what needs a GPU is replaced",
    Verified.PACKAGE: "the tests look up every hooked function in the published code, and run objects of its shape",
    Verified.SHAPE: "the tests record objects that are made after the package's source",
}


def render() -> str:
    """Write the page."""
    found = [choice.load(name, path) for name, path in OURS.items()]
    rows = [_row(one) for one in found if one is not None]
    meanings = table(("tested by", "what that is"), [(one.value, text) for one, text in MEANINGS.items()])
    return HEAD + table(("name", "versions", "what is recorded", "tested by"), rows) + TAIL + meanings


def _row(one: Integration) -> tuple[str, ...]:
    tested = one.verified.value if one.verified else ""
    return f"`{one.name}`", f"`{one.package}` {one.supports.replace(',', ', ')}", one.records, tested
