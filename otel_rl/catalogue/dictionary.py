"""`docs/metrics.md`: every number that is asked for, where it is, and which name of which framework it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.catalogue.demand import Canonical, Demanded, Feed, Named, Topic
from otel_rl.catalogue.framework_names import PRINTED
from otel_rl.catalogue.framework_tables import TABLES
from otel_rl.catalogue.markdown import code, section, table
from otel_rl.catalogue.numbers_by_concern import BY_CONCERN
from otel_rl.catalogue.numbers_by_stage import BY_STAGE
from otel_rl.catalogue.series_names import emitted
from otel_rl.catalogue.traps import TRAPS

HEAD: Final = """\
# Which number is where

Written by `python -m otel_rl.catalogue` from the tables in `otel_rl/catalogue/` and those of the integrations.

Here are the numbers that users of RL training ask for: first by stage, then by concern, then by the names that
frameworks print. At the end are those that are known to be wrong somewhere.

Each part has two tables. The first says where a number is: a metric, a span (with its histogram), an attribute or a
field of a log record. It also has the unit (UCUM), what it is, and who measures it:

- `framework`: it is the framework's own number.
- `hook`: a function of the framework is timed, or its arguments are looked at.
- `otel_rl`: it is measured without the framework.

The second table says what feeds it: a key of the framework's log, a timer, a function, or why nothing does.

- A key such as `critic/score/mean` goes out under our name. With `*` it does so only under some settings or of some
  versions ([verl](verl.md#what-verls-own-numbers-mean)).
- A key with `verl.`, `trl.` or `roll.` goes out under this name: there is none of ours, or it means something else.
  `verl.…` stands for the same name after this prefix.
- **cannot be fed** has a reason that was checked. **not yet** means that nothing records it, though it is known.
- **needs** names what a CPU does not have. Everything else is there on a CPU, too.

[The catalogue](catalogue.md) has all names of ours, [prometheus.md](prometheus.md) those of the series, and
[verl.md](verl.md) and [roll.md](roll.md) more about the frameworks' numbers.
"""
MOST_NAMES: Final = 6
"""Functions of a stage that a cell names."""
TITLES: Final = {"trl": "TRL", "verl": "verl", "roll": "ROLL", "own": "your own loop"}
PREFIXES: Final = {"trl": v.TRL, "verl": v.VERL, "roll": v.ROLL, "own": v.USER}
WORDS: Final = {"key": "framework", "kept": "framework", "stage": "hook", "seam": "hook", "measured": "otel_rl"}
WHERE: Final = ("number", "ours", "unit", "what it is", "from")
FROM: Final = ("number", *TITLES.values())


def render() -> str:
    printed = (prints(framework, names) for framework, names in PRINTED.items())
    return "\n".join([HEAD, *map(tables, topics()), *printed, traps()])


def topics() -> tuple[Topic, ...]:
    return (*BY_STAGE, *BY_CONCERN)


def tables(topic: Topic) -> str:
    """Return the two tables of a topic, one after the other."""
    where = section(topic.title, topic.text, WHERE, map(_where, topic.numbers))
    return f"{where}\n{table(FROM, ((one.name, *_fed(one)) for one in topic.numbers))}"


# --- where a number is ------------------------------------------------------------------------------------------------


def _where(number: Demanded) -> Sequence[str]:
    named = number.where or ", ".join(map(written, number.ours)) or "no name of ours"
    unit = unit_of(number)
    said = f"{meaning(number)} (needs {number.needs})" if number.needs else meaning(number)
    return number.name, named, code(unit) if unit else "", said, sources(number)


def written(ours: Canonical) -> str:
    """Return a name with its labels; of a stage its histogram, too."""
    stage = v.STAGES.get(ours.name)
    if stage is not None:
        return ", ".join(map(code, filter(None, (stage.name, stage.duration))))
    labels = ",".join(str(value) for _, value in ours.labels)
    return code(f"{ours.name}{{{labels}}}" if labels else ours.name)


def unit_of(number: Demanded) -> str:
    if number.unit is not None:
        return number.unit
    first = number.ours[0].name
    return "s" if first in v.STAGES else emitted()[first].unit


def meaning(number: Demanded) -> str:
    """Return what a number is, as the row or else the vocabulary says it."""
    if number.means:
        return number.means
    found = definition(number.ours[0].name)
    assert found is not None, number
    return found


def definition(name: str) -> str | None:
    """Return the meaning of a name of the vocabulary; None if it has no such name."""
    known = v.METRICS.get(name) or v.STAGES.get(name) or v.ATTRIBUTES.get(name) or v.EVENTS.get(name)
    known = known or emitted().get(name)
    return None if known is None else known.meaning


def sources(number: Demanded) -> str:
    found = (WORDS[feed.kind] for feed in number.feeds.values() if feed.is_fed)
    return ", ".join(dict.fromkeys(found))


# --- what feeds it ----------------------------------------------------------------------------------------------------


def _fed(number: Demanded) -> Iterator[str]:
    for framework, feed in number.feeds.items():
        yield fed(framework, number, feed)


def fed(framework: str, number: Demanded, feed: Feed) -> str:
    """Return the cell that says what feeds a number with a framework."""
    if feed.kind == "never":
        return f"cannot be fed: {feed.note}"
    if feed.kind == "open":
        return f"not yet: {feed.note}"
    names = _names(framework, number, feed)
    return "; ".join(filter(None, (", ".join(names), feed.note))) or "measured"


def _names(framework: str, number: Demanded, feed: Feed) -> list[str]:
    if feed.kind == "kept":
        return [code(f"{PREFIXES[framework]}{name}") for name in feed.names]
    if feed.kind == "seam":
        return [code(name) for name in feed.names]
    if framework == "own" and feed.kind in ("key", "stage"):
        return [_own(number, feed)]
    if feed.kind == "key":
        marked = TABLES[framework].conditional
        return [code(name) + ("*" if name in marked else "") for name in keys(framework, number)]
    if feed.kind == "stage":
        return _shortened([code(name) for name in seams(framework, number)])
    return []


def _shortened(names: list[str]) -> list[str]:
    """Leave out the last of many names."""
    left = len(names) - MOST_NAMES
    return names if left <= 1 else [*names[:MOST_NAMES], f"{left} more"]


def _own(number: Demanded, feed: Feed) -> str:
    first = number.ours[0].name
    return code(
        f'otel_rl.stage("{first.removeprefix("rl.")}")' if feed.kind == "stage" else f'otel_rl.record("{first}", ...)'
    )


def keys(framework: str, number: Demanded) -> list[str]:
    """Return the keys of a framework's log that the integration maps to one of the names of a number."""
    return [
        key
        for key, series in TABLES[framework].keys.items()
        if any(series == (one.name, one.labels) for one in number.ours)
    ]


def seams(framework: str, number: Demanded) -> list[str]:
    """Return timers and functions of a framework that are the stage of a number."""
    return TABLES[framework].of_stage(number.ours[0].name)


# --- what a framework prints ------------------------------------------------------------------------------------------


def prints(framework: str, names: Sequence[Named]) -> str:
    rows = ((code(one.pattern), _arrival(framework, one), one.note) for one in names)
    return section(f"What {TITLES[framework]} prints", "", ("name", "arrives as", "note"), rows)


def _arrival(framework: str, named: Named) -> str:
    """Return what has our name, and the prefix under which all others go out."""
    if named.is_missing:
        return "not recorded"
    prefix = PREFIXES[framework]
    found = {name: arrives(framework, named, name) for name in expanded(named.pattern)}
    ours = {name: metric for name, metric in found.items() if metric != f"{prefix}{name}"}
    if not ours:
        return code(f"{prefix}…")
    said = [code(metric) if len(found) == 1 else f"{code(name)}: {code(metric)}" for name, metric in ours.items()]
    return ", ".join(said if len(ours) == len(found) else [*said, f"others: {code(f'{prefix}…')}"])


def arrives(framework: str, named: Named, name: str) -> str:
    """Return under which metric a number that a framework prints goes out."""
    if name in named.ours:
        return named.ours[name]
    series = TABLES[framework].series(name)
    return written(Canonical(*series)).strip("`") if series else f"{PREFIXES[framework]}{name}"


def expanded(pattern: str) -> list[str]:
    """Return the names of a pattern: braces stand for each of their parts."""
    parts = [part[1:-1].split(",") if part.startswith("{") else [part] for part in re.split(r"(\{[^}]*\})", pattern)]
    return ["".join(one) for one in product(*parts)]


# --- traps ------------------------------------------------------------------------------------------------------------


def traps() -> str:
    text = "Numbers that are wrong in some version of a framework, or mean something else than their names say."
    return section(
        "Traps", text, ("number", "where", "what is wrong"), ((one.number, one.where, one.wrong) for one in TRAPS)
    )
