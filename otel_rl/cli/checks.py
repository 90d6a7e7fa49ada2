"""What `otel-rl doctor` checks; each check returns findings and prints nothing."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Final, Literal

from google.protobuf.internal import api_implementation

from otel_rl import vocabulary as v
from otel_rl.config import (
    LIMITS,
    OF_COLLECTOR,
    ON_FINDING,
    Config,
    ConfigurationError,
    ignored,
    may_be_key,
    settings,
    unknown_variables,
)
from otel_rl.config.parsers import is_address
from otel_rl.guard import error_of
from otel_rl.integrations import AUTO, registered
from otel_rl.journal.frame import Signal
from otel_rl.journal.otlp import encode
from otel_rl.journal.page import PageView, find_pages
from otel_rl.journal.read import Journal, Run
from otel_rl.report.data.rule_settings import KlRange
from otel_rl.report.rows.losses import damage_rows, totals
from otel_rl.report.rows.rule_file import RULES, kl_range, rule_settings
from otel_rl.runs.format import clock, count, plural, size
from otel_rl.runs.settings_file import FILE
from otel_rl.sidecar import settings as sending
from otel_rl.sidecar.settings import SIGNALS
from otel_rl.version import __version__

PACKAGES: Final = (
    "opentelemetry-sdk", "protobuf", "torch", "trl", "transformers", "accelerate", "datasets", "vllm",
    "sglang", "openai", "verl", "ray", "deepspeed", "numpy", "rich", "typer",
)  # fmt: skip
LEAST_FREE_BYTES: Final = 1 << 30
SECRET: Final = re.compile(r"header|key|token|secret|passw|credential|auth", re.IGNORECASE)
SECRET_PAIR: Final = re.compile(rf"({SECRET.pattern})[\w.-]*=", re.IGNORECASE)
PRIVATE_ADDRESS: Final = re.compile(r"(?!/[^/]).*@|.*//.*\?", re.DOTALL)
"""An address, and no path of a file, with a user or a query: those may hold a password or a signature."""
PAIRS: Final = "OTEL_RESOURCE_ATTRIBUTES"
READ_ELSEWHERE: Final = {
    "OTEL_PROPAGATORS",
    "OTEL_PYTHON_CONTEXT",
    "OTEL_PYTHON_TRACER_PROVIDER",
    "OTEL_PYTHON_METER_PROVIDER",
}
"""Variables that are honoured and are no settings: headers are not passed on, the program's provider is not touched."""
NO_EFFECT: Final = "not honoured: has no effect on otel_rl"
HIDDEN: Final = "set (hidden)"
Mark = Literal["ok", "note", "wrong"]
SAID: Final = ("applies", "absent")
"""States of integrations that their details say."""
INTEGRATION_MARKS: Final[dict[str, Mark]] = {"applies": "ok", "unsupported": "wrong", "broken": "wrong"}
SOURCE_MARKS: Final[dict[str, Mark]] = {"environment": "ok", "default": "note"}
SPOILED: Final = {v.SELF_DROPPED: "dropped", v.SELF_CHANGED: "changed", v.SELF_ERRORS: "errors"}
COUNTED: Final = {v.SELF_RECORDED: "recorded", v.SELF_ENCODED: "encoded", v.SELF_JOURNALED: "journaled"}
"""Counts of the same records on their way; they are points themselves, so of points they lack the last ones."""
RECORDS: Final[Mapping[Signal, str]] = {"traces": "span", "metrics": "point", "logs": "log record"}
REDACT: Final = "OTEL_RL_REDACT"
CAPTURE: Final = "OTEL_RL_CAPTURE_CONTENT"
NO_FRAMEWORK: Final = "no framework"
WHERE: Final = (
    "checkpoints are saved in TRL and other trainers of transformers, stops work there and in verl; in ROLL and in "
    "loops of your own only calls do (docs/actions.md)"
)
OF_VERL: Final = {"driver": "steps", "actor": "training", "agent_loop": "rollouts"}
"""What is recorded by processes of each role that every job of verl has."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor."""

    state: Mark
    name: str
    detail: str


def installed() -> list[Check]:
    """Return Python and the packages that matter, absent ones last."""
    rows = [
        Check("ok", "otel-rl", __version__),
        Check("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
    ]
    absent: list[str] = []
    for package in PACKAGES:
        try:
            rows.append(Check("ok", package, version(package)))
        except PackageNotFoundError:
            absent.append(package)
    return rows + ([Check("note", "not installed", ", ".join(absent))] if absent else [])


def integrations() -> list[Check]:
    """Return the integrations and whether each applies here; if none has its package, what there could be."""
    from otel_rl.integrations import choice  # the other commands do without it and start faster

    asked = choice.asked_for()
    statuses = choice.every_status()
    found: list[Check] = []
    for name, state, detail in statuses:
        mark = INTEGRATION_MARKS.get(state, "wrong" if name in asked else "note")
        found.append(Check(mark, name, detail if state in SAID else f"{state} {detail}".strip()))
    if {status.state for status in statuses} == {"absent"} and "wrong" not in {check.state for check in found}:
        found = _without_framework()
    strangers = [name for name in asked if name not in (*registered(), AUTO)]
    found += [_plugin_of_verl() for name, state, _ in statuses if (name, state) == ("verl", "applies")]
    return found + [Check("wrong", name, "there is no such integration") for name in strangers]


def _plugin_of_verl() -> Check:
    """Return whether verl itself starts otel_rl, without `otel-rl run`."""
    if os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower() == "none":
        return Check("note", "verl's plugin", "VERL_USE_EXTERNAL_PLUGINS=none: verl is recorded below otel-rl run only")
    if "otel_rl" not in entry_points(group="verl.plugins").names:  # on PYTHONPATH only, or installed before it had any
        return Check("note", "verl's plugin", "not installed by pip: verl is recorded below otel-rl run only")
    enabled = os.environ.get("OTEL_RL_ENABLED", "").strip()
    if enabled:
        return Check("ok", "verl's plugin", f"OTEL_RL_ENABLED={enabled} applies to verl also without otel-rl run")
    return Check("note", "verl's plugin", "OTEL_RL_ENABLED=true would record verl also without otel-rl run")


def _without_framework() -> list[Check]:
    from otel_rl.integrations import choice

    loaded = (choice.load(name, path) for name, path in registered().items())
    packages = {one.package: f"{one.package} {one.supports}" for one in loaded if one is not None}
    return [
        Check("note", NO_FRAMEWORK, f"{sys.executable} has none that otel_rl records by itself"),
        Check("note", "to install", "the framework that you train with, for example: pip install trl"),
        Check("note", "known", ", ".join(packages.values())),
    ]


def rules_changed(root: Path) -> list[Check]:
    """Return what a user changed of the rules, and what of that has no effect."""
    found = rule_settings(root)
    rows = [Check("wrong", Path(found.file).name, problem) for problem in found.problems]
    rows += [Check("ok", name, "switched off") for name in found.off]
    rows += [
        Check(
            "ok",
            name,
            ", ".join(f"{bound} = {value:g} (default {RULES[name].bounds[bound]:g})" for bound, value in of.items()),
        )
        for name, of in found.bounds.items()
    ]
    rows += [Check("ok", name, f"advice: {text}") for name, text in found.advice.items()]
    rows += [Check("ok", "action", action) for action in found.actions]
    if found.actions:
        rows.append(Check("note", "actions", WHERE))
    if found.kl != KlRange():
        rows.append(Check("ok", "kl", kl_range(found.kl)))
    return (
        [Check("ok", "file", found.file), *rows]
        if found.file
        else [Check("note", FILE, "none: the rules are as shipped")]
    )


def settings_rows() -> list[Check]:
    """Return every setting with its value and source, then those of the Collector, and unknown ones."""
    rows = [
        Check(
            SOURCE_MARKS.get(row.source, "wrong"),
            row.variable,
            f"{shown(row.variable, row.value) or '(empty)'}  [{row.source}]",
        )
        for row in settings()
    ]
    rows += [
        Check("note", name, f"{shown(name, os.environ[name])}  [of the Collector]")
        for name in sorted(OF_COLLECTOR & set(os.environ))
    ]
    return rows + [
        Check("wrong", name, "unknown setting, ignored" + (f"; did you mean {nearest}?" if nearest else ""))
        for name, nearest in unknown_variables()
    ]


def hook(environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Return whether the command of the user's hook exists; an address is not called."""
    text = environ.get(ON_FINDING, "").strip()
    with suppress(ValueError):  # settings_rows has it
        if text and not is_address(text) and shutil.which(command := shlex.split(text)[0]) is None:
            name = Path(command).name  # a path may hold a secret
            return [Check("wrong", ON_FINDING, f"its command ({name}) does not exist, or is not executable")]
    return []


def redaction(environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Return whether the function that texts pass can be imported here, and whether there are any."""
    name = environ.get(REDACT, "").strip()
    module, _, function = name.partition(":")
    if not function:  # settings_rows has what is wrong with it
        return []
    try:
        is_captured = Config.from_env(environ).capture_content
    except ConfigurationError:  # settings_rows has this, too
        return []
    if not is_captured:
        return [Check("note", REDACT, f"without effect: no text is recorded without {CAPTURE}=true")]
    failed = error_of(lambda: getattr(import_module(module), function))
    problem = f"cannot be imported here ({type(failed).__name__}): no text of a sample is recorded"
    return [Check("wrong", REDACT, problem)] if failed else []


def standard_variables(honoured: Collection[str]) -> list[Check]:
    """Return the OTEL_ variables that are set, and of each whether it is honoured, ignored or without effect."""
    honoured = {row.variable for row in settings()} | set(LIMITS) | READ_ELSEWHERE | set(honoured)
    without = ignored() | sending.ignored()
    found = []
    for name, value in sorted(os.environ.items()):
        if not name.startswith("OTEL_") or name.startswith("OTEL_RL_"):
            continue
        if name in without:
            found.append(Check("note", name, f"{shown(name, value)}  [ignored: {without[name]}]"))
        elif name in honoured:
            found.append(Check("ok", name, f"{shown(name, value)}  [honoured]"))
        else:
            found.append(Check("note", name, f"set  [{NO_EFFECT}]"))
    return found


def shown(name: str, value: str) -> str:
    """Return a value for printing, without what may be secret; of pairs only the keys."""
    if value and name == PAIRS:
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        return f"keys: {', '.join(key.strip() if equals else HIDDEN for key, equals, _ in pairs)}"
    is_secret = may_be_key(value) or SECRET.search(name) or SECRET_PAIR.search(value) or PRIVATE_ADDRESS.match(value)
    is_private = name == ON_FINDING and "://" in value  # the path of the address may be a secret
    return HIDDEN if value and (is_secret or is_private) else value


def protobuf() -> Check:
    """Check that protobuf runs in C: in pure Python the stock encoder takes 639 us a span (measured)."""
    kind = api_implementation.Type()
    if kind != "python":
        return Check("ok", "protobuf", f"implementation {kind}")
    reason = "runs in pure Python, which costs 639 us a span; unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
    return Check("wrong", "protobuf", reason)


def compiled() -> Check:
    """Return whether spans are encoded in C, or in Python since no compiler was found at installation."""
    if encode.native is not None:
        return Check("ok", "compiled parts", "spans in C")
    reason = "in Python, 3 to 16 us a span slower: install otel_rl again where there is a C compiler"
    return Check("note", "compiled parts", reason)


def journal_root(root: Path) -> list[Check]:
    """Try to write where runs are kept, or in the nearest folder that exists, and leave nothing there."""
    try:
        existing = next(folder for folder in (root, *root.parents) if folder.exists())
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"otel_rl")
            file.flush()
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return [Check("wrong", "journal", f"cannot write below {root}: {error.strerror}")]
    rows = [Check("ok", "journal", f"{root} is writable, {size(free)} free")]
    if free < LEAST_FREE_BYTES:
        rows.append(Check("wrong", "free space", f"only {size(free)} left below {root}"))
    return rows


def recorded(run: Run) -> list[Check]:
    """Return how many records a run holds, what its processes dropped or changed, and what is damaged."""
    sums = totals(point for name in (*COUNTED, *SPOILED) for point in run.points(name))
    rows = _journaled(run, sums)
    for (name, signal, reason), number in sorted(sums.items()):
        if name in SPOILED:
            mark: Mark = "ok" if number <= 0 else "note" if name == v.SELF_CHANGED else "wrong"
            rows.append(Check(mark, " ".join(filter(None, (SPOILED[name], signal, reason))), count(number)))
    rows += [
        Check("wrong", f"{row.writer} damaged", f"{plural(row.places, 'place')}, {size(row.bytes)}: {row.reason}")
        for row in damage_rows(run.journals)
    ]
    silent = Counter((str(log.attributes.get(v.PROVIDER, "")), log.body) for log in run.logs(v.NO_STATISTICS))
    return rows + [
        Check("note", name, f"{plural(number, 'engine')}: {text}") for (name, text), number in silent.items()
    ]


def writers(run: Run) -> list[Check]:
    """Return which processes wrote a run, which of them live, and which ended before all was written."""
    pages = find_pages(run.path)
    return [_life(journal, pages.get(journal.identity.writer)) for journal in run.journals]


def absent(run: Run) -> list[Check]:
    """Return of which processes of verl nothing was recorded, though every job has them."""
    first = next(iter(run.spans()), None)
    if first is None or first.resource.get(v.SYSTEM) != "verl":
        return []
    roles = {journal.identity.writer.rsplit("-", 3)[0] for journal in run.journals}
    why = "otel_rl may not be installed on its node, or that node writes to a disk of its own"
    return [Check("note", f"no {role}", f"no {what}: {why}") for role, what in OF_VERL.items() if role not in roles]


def _life(journal: Journal, page: PageView | None) -> Check:
    """Return whether a process lives; one that ended as it should has removed its page."""
    mark: Mark = "ok"
    if journal.alive():
        state = "alive"
    elif page is None:
        state = "gone"
    else:
        mark, state = "note", "gone before its end was written" if page.is_unwritten else "killed"
    identity = journal.identity
    text = f"{state}, pid {identity.pid} on {identity.host}, last record {clock(journal.last_ns)}"
    return Check(mark, identity.writer, text)


def _journaled(run: Run, sums: Mapping[tuple[str, str, str], int]) -> list[Check]:
    """Return how many records are here, and the signals of which other numbers were recorded, encoded or journaled.

    Those of a sidecar are apart, since no process that records counts them.
    """
    frames = {signal: _frames(run, signal) for signal in SIGNALS}
    here = {signal: frames[signal][False] for signal in SIGNALS}
    sidecar = sum(found[True] for found in frames.values())
    counted = {signal: [sums.get((name, signal, ""), 0) for name in COUNTED] for signal in SIGNALS}
    differ = [signal for signal in SIGNALS if len({*counted[signal]}) > 1 or max(counted[signal]) > here[signal]]
    kinds = ", ".join(plural(here[signal], RECORDS[signal]) for signal in SIGNALS)
    total = f"{count(sum(here.values()))} {'here' if differ else 'recorded, all journaled'}: {kinds}"
    rows = [Check("ok", "records", total + (f"; {count(sidecar)} more by the sidecar" if sidecar else ""))]
    for signal in differ:
        said = [f"{count(number)} {word}" for number, word in zip(counted[signal], COUNTED.values(), strict=True)]
        rows.append(Check("note", signal, f"{', '.join(said)}, {count(here[signal])} here"))
    return rows


def _frames(run: Run, signal: Signal) -> Counter[bool]:
    """Count records, by whether a sidecar wrote them."""
    numbers: Counter[bool] = Counter()
    for journal, frame in run.frames(signal):
        numbers[journal.identity.is_sidecar] += frame.count
    return numbers
