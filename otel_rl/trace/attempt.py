"""How the open traces of this process get the ids of its attempt, whoever names it."""

from __future__ import annotations

from otel_rl.guard import attempt, guard, say
from otel_rl.process.identity import identifying
from otel_rl.process.rendezvous import Rendezvous
from otel_rl.process.state import state
from otel_rl.trace.memory import tracing


def know_attempt(attempt_id: str = "", run_id: str = "") -> None:
    """Learn the attempt of the job, or (without arguments) make one."""
    with identifying.lock:  # the flusher writes the set-up's spans once the attempt is known: with the ids of that
        if attempt_id:
            state.identify(attempt_id=attempt_id, run_id=run_id)
        else:
            state.make_attempt()  # nothing named the one of those that this process works for
        trees, tracing.unidentified = tracing.unidentified, []
        for tree in trees:
            tree.identify(state.identity.attempt_id)


def report_alone() -> None:
    """Make an attempt of our own if nothing named the job's, and say so."""
    kind, is_worker = state.identity.kind, state.identity.is_worker
    with identifying.lock:  # another thread may learn the job's meanwhile
        is_alone = not state.identity.known
        if is_alone:
            know_attempt()
    if not is_alone:
        return
    if is_worker:
        say(
            "otel_rl: this %s was given no carrier and reports as a run of its own; pass it Carrier.current(), or set "
            "OTEL_RL_RUN_ID and OTEL_RL_ATTEMPT_ID for all processes",
            kind,
        )
        return
    is_named = state.config.run_id or state.identity.world_size == 1
    say(
        "otel_rl: rank %d found no process group to learn the attempt from, nor rank 0, and reports alone; set %s",
        state.identity.rank,
        f"{'' if is_named else 'OTEL_RL_RUN_ID or '}OTEL_RL_ATTEMPT_ID for all ranks",
    )


def find_attempt() -> None:
    """Before a step: have the attempt, or meet the ranks that have it."""
    if identifying.may_meet:
        identifying.may_meet = False
        identifying.rendezvous = Rendezvous(state.identity, state.config)
        state.ensure_awake()
    elif not state.identity.known and identifying.rendezvous is None:
        if identifying.ask_again is not None:
            attempt("ask", "rank 0 for its attempt", identifying.ask_again)
        report_alone()


def meet(*, is_asked: bool, is_last: bool) -> None:
    """Search for the other ranks where this process meets them, on the flusher's thread; go on alone after a while.

    Args:
        is_asked: search now, though the last time is not long ago.
        is_last: this process ends.
    """
    rendezvous = identifying.rendezvous
    if rendezvous is None:
        return
    with guard("meet the other ranks"):
        found = rendezvous.poll(state.identity, is_asked=is_asked)
        with identifying.lock:
            if found is not None and not state.identity.known:  # a process group may have named it meanwhile
                know_attempt(*found)
    if is_last and not rendezvous.is_over:
        rendezvous.leave()
    if rendezvous.is_over:
        identifying.rendezvous = None
        report_alone()
