"""A stall in words: the last link of the chain first, then who waits for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.runs.format import plural, printable, seconds
from otel_rl.stalls.chain import Link, Stall
from otel_rl.stalls.members import Process

DETAILS: Final = (
    (v.REWARD_FUNCTION, "function {}"), (v.TOOL_NAME, "tool {}"), (v.SAMPLE_ID, "sample {}"), (v.GROUP_ID, "group {}"),
    (v.RESPONSE_ID, "request {}"), (v.IDLE_REASON, "{}"), (v.REPLICA, "engine {}"), (v.SYNC_OPERATION, "{}"),
    (v.TRAIN_MODEL, "{}"), (v.LOGPROB_KIND, "{}"),
)  # fmt: skip
"""Attributes that say which call of a stage it is."""
ADVICE: Final = "`otel-rl report --json` has its stacks; `otel-rl stacks` shows where a live process is now."
LONGEST: Final = 60
QUIET: Final = {
    "silent": ". The process has given no sign of life for {}: something holds its interpreter, or it does not run",
    "stopped": ". The process has been stopped (SIGSTOP) for at most {}",
    "dead": ". The process ended at most {} ago",
}


def chain_of(stall: Stall) -> str:
    """Return who waits for whom, in a few sentences."""
    last = stall.last
    if stall.cause == "collective":
        who, have = _people(stall.together), "have all" if len(stall.together) > 1 else "has"
        text = f"{who} {have} been inside {what_of(last)} for {seconds(last.age_s)}{_normally(last)}. It does not end."
    elif stall.cause == "unseen":
        text = f"{_people([last])} waits in {what_of(last)} for rank {stall.unseen}, for {seconds(last.age_s)}. "
        text += "That rank has no status page here: it runs on another node, or has ended."
    else:
        holds = "holds everybody up" if stall.waiting else "is stuck"
        text = f"{_people([last])} {holds}: {what_of(last)}, for {seconds(last.age_s)}{_normally(last)}"
        text += QUIET.get(stall.cause, "").format(seconds(last.process.silent_s())) + "."
    if last.process.page.requests:
        text += f" Inside its engine: {plural(last.process.page.requests, 'request')}."
    return " ".join([text, *_waiting(stall.waiting)])


def place_of(process: Process) -> str:
    """Return who a process is, and where it runs."""
    page = process.page
    return f"{process.kind} {page.rank}, process {page.identity.pid} on {page.identity.host}"


def _normally(link: Link) -> str:
    return "" if link.bound.normal_s is None else f" (normally {seconds(link.bound.normal_s)})"


def what_of(link: Link) -> str:
    """Return the stage that a process is in, with what says which call of it."""
    leaf, step = link.leaf, link.process.page.step
    where = "" if step is None else f" in step {step}"
    if leaf.name == v.COMM:
        group = f" of {leaf.get(v.COMM_GROUP)}" if leaf.get(v.COMM_GROUP) else ""
        return f"{leaf.get(v.COMM_OPERATION)} {leaf.get(v.COMM_SEQUENCE) or ''}".rstrip() + group + where
    if not leaf.name:
        return f"no stage{where}"
    if leaf.is_container:
        phases = {v.LOOP: f"step {step}", v.SETUP: "set-up", v.TEARDOWN: "tear-down"}
        return f"{phases[link.process.name_of(leaf)]}, in no stage"
    said = [(text, _short(leaf.get(key))) for key, text in DETAILS if leaf.get(key) not in (None, "")]
    details = [text.format(value) for text, value in said if value not in leaf.name]
    return leaf.name + (f" ({', '.join(details)})" if details else "") + where


def _where(link: Link) -> str:
    return "" if link.process.page.step is None else f" in step {link.process.page.step}"


def _short(value: Any) -> str:
    return printable(str(value))[:LONGEST]


def _waiting(links: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence for all who wait in the same, those first that wait longest."""
    calls = Counter((link.process.writer, link.leaf.name) for link in links)
    alike: defaultdict[str, list[Link]] = defaultdict(list)
    for link in links:
        number = calls[link.process.writer, link.leaf.name]
        what = what_of(link) if number == 1 else f"{number} calls of {link.leaf.name}{_where(link)}"
        alike[what].append(link)
    for what, some in sorted(alike.items(), key=lambda item: -max(one.age_s for one in item[1])):
        verb = "wait" if len({one.process.writer for one in some}) > 1 else "waits"
        yield f"{_people(some)} {verb} in {what} for {seconds(max(one.age_s for one in some))}."


def _people(links: Iterable[Link]) -> str:
    """Return the processes: ranks by their numbers, others after their role."""
    by_role: defaultdict[str, set[int]] = defaultdict(set)
    for link in links:
        by_role[link.process.kind].add(link.process.page.rank)
    names = [_numbered(role, sorted(ranks)) for role, ranks in by_role.items()]
    text = " and ".join(names)
    return text[:1].upper() + text[1:]


def _numbered(role: str, ranks: list[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{role}{'s' if len(ranks) > 1 else ''} {shown}"
