"""Requests of transformers' ``generate`` (static batches); those of continuous batching: ``transformers_batching``.

Runs in the process that generates. Source: ``generation/utils.py`` of transformers 4.56.2, 4.57.6, 5.0, 5.8, 5.12 and
5.23. Every sequence of a batch is a request. ``_has_unfinished_sequences`` is called once before the first token and
once after each one, right after the point where ``generate`` itself has waited for the device to learn whether it may
stop: the time taken there is that of the token on the device too, and no wait is added (on ``mps`` transformers
looks one step late, and so do we). TTFT is that of the batch; a sequence ends with its own last token, though its
caller sees it when the whole batch is done. What is computed after its end is padding.

Beam search: the returned sequences, as if each had been decoded alone. Assisted decoding: tokens of one round have one
time, and what the assistant generates in between is no request. A ``generate`` that passes the call on to another one
is one request; of one that returns something else than its decoding did (``custom_generate``) only the duration is
known. Models with a ``generate`` of their own (Whisper, RAG) count as far as they call this one. A streamer makes no
difference. A call that fails before it decodes is no request. The KV cache is measured by the shapes of its tensors at
the end of decoding; nothing of it is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks import CallbackHook, Integration, ReturnHook, Verified
from otel_rl.hooks.arguments import Args, Kwargs
from otel_rl.ids import random_bits
from otel_rl.integrations.transformers import batching
from otel_rl.probes import deferred, kv_cache
from otel_rl.probes.deferred import deferral
from otel_rl.probes.memory import probes
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, FinishedRequests, Labels
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import UNKNOWN, Request, record_kv_cache, record_requests
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_parent
from otel_rl.trace.throughput import add_padding

PACKAGE = "transformers"
SUPPORTS = ">=4.56,<6"


KNOWN_CRITERIA = ("MaxLengthCriteria", "MaxTimeCriteria", "EosTokenCriteria")
"""Criteria that end all sequences at once, or end one by a token that is found in the output."""
KEEPS_ALL = ("_sample", "_beam_search")
"""Decoding methods that drop no token again: their KV cache is largest at the end, and still their caller's then."""


class Plan:
    """What a decoding method is given: prompts as expanded, lengths as resolved, criteria as merged."""

    __slots__ = (
        "config", "decoder", "enders", "is_known", "is_timed", "limit", "prompts", "returned", "rows", "start",
    )  # fmt: skip

    def __init__(self, decoder: str, model: Any, ids: Any, given: Kwargs) -> None:
        config = given["generation_config"]
        self.decoder = decoder
        self.config = model.config
        """Holds the model's name."""
        self.start = int(ids.shape[1])
        """Positions before the first new token."""
        self.limit = int(config.max_length) - self.start
        self.returned = int(config.num_return_sequences or 1)
        """Sequences of each prompt."""
        beams = int(config.num_beams or 1) if decoder == "_beam_search" else self.returned
        self.rows = int(ids.shape[0]) // beams * self.returned
        self.enders: list[Any] = []
        """End tokens: a tensor of each criterion."""
        self.is_timed = False
        self.is_known = True
        """Whether the output shows what every criterion did."""
        for criterion in given["stopping_criteria"]:
            if hasattr(getattr(criterion, "eos_token_id", None), "reshape"):  # a user's own may hold a number
                self.enders.append(criterion.eos_token_id)
            elif hasattr(criterion, "max_time"):
                self.is_timed = True
            if type(criterion).__name__ not in KNOWN_CRITERIA:
                self.is_known = False
        self.prompts = _prompts(model, ids, config, given)
        """Tokens of the prompt of each row: a small tensor, or one number for all."""


def _prompts(model: Any, ids: Any, config: Any, given: Kwargs) -> Any:
    """Count by the attention mask; transformers drops one without padding, and notes its length."""
    mask = given.get("attention_mask")
    if mask is not None and len(mask.shape) == 2:
        return mask.sum(1)
    if mask is not None or model.config.is_encoder_decoder:
        return UNKNOWN
    dropped = int(getattr(config, "_mask_length", 0) or 0)
    return dropped if dropped > 0 else int(ids.shape[1])


class GenerateCall:
    """One call of ``generate``, while it runs."""

    __slots__ = (
        "cache",
        "depth",
        "done",
        "ended",
        "marks",
        "model",
        "outer",
        "plan",
        "result",
        "sampling",
        "submitted",
    )  # fmt: skip

    def __init__(self, outer: GenerateCall | None, model: Any) -> None:
        self.outer = outer
        """The call that this one is part of: that of an assistant's model, for example."""
        self.depth = 0
        """Calls that this one was passed on to and that have not returned."""
        self.model = model
        self.submitted = monotonic_ns()
        self.ended = 0
        self.marks: list[int] = []
        """When decoding began, then when each token was there."""
        self.plan: Plan | None = None
        self.done: list[Any] | None = None
        """Which sequences are over, after each token, where the output does not show it."""
        self.result: Any = None
        """What the decoding method returned."""
        self.cache: kv_cache.CacheBytes | None = None
        """Bytes of its KV cache at the end of decoding."""
        self.sampling = generation.sampling

    def release(self) -> None:
        """Keep no tensor of the host's: times and counts are all that is left to read."""
        self.model = self.result = self.done = None
        if self.plan is not None:
            self.plan.enders, self.plan.prompts = [], UNKNOWN


# --- while it runs ----------------------------------------------------------------------------------------------------


def _begin(args: Args, kwargs: Kwargs) -> None:
    if deferral.pending:
        deferred.resolve()
    generating = generation.thread
    call = generating.call
    if call is not None and not call.marks:
        call.depth += 1
    else:
        if probes.device is not None:
            probes.device.clock.generates()
        generating.call = call = GenerateCall(call, args[0])
        generating.marks = call.marks


def _decode(decoder: str, args: Args, kwargs: Kwargs) -> None:
    call = generation.thread.call
    if call is None or call.plan is not None or call.model is not args[0]:
        return
    call.marks.clear()  # those of another model's call, made while this one prepared
    call.plan = plan = Plan(decoder, args[0], args[1], kwargs)
    if decoder == "_sample" and plan.rows > 1 and not plan.is_known:
        call.done = []


def _mark(args: Args, kwargs: Kwargs, result: Any) -> None:
    marks = generation.thread.marks
    if marks is not None:
        marks.append(monotonic_ns())


def _keep_done(args: Args, kwargs: Kwargs, result: Any) -> None:
    call = generation.thread.call
    if call is not None and call.done is not None:
        call.done.append(result)


def _decoded(args: Args, kwargs: Kwargs, result: Any) -> None:
    call = generation.thread.call
    if call is not None and call.model is args[0]:
        call.result = result
        if call.plan is not None and call.plan.decoder in KEEPS_ALL:
            call.cache = kv_cache.of_layers(kwargs.get("past_key_values"))


def _leave() -> GenerateCall | None:
    """Return the call that ends, if it is one of its own: not passed on, and not part of another."""
    generating = generation.thread
    call: GenerateCall | None = generating.call
    if call is None:
        return None
    if call.depth:
        call.depth -= 1
        return None
    generating.call = outer = call.outer
    generating.marks = None if outer is None else outer.marks
    call.ended = monotonic_ns()
    return call if outer is None else None


def _end(args: Args, kwargs: Kwargs, result: Any) -> None:
    call = _leave()
    if call is None:
        return
    parent = current_parent() or tracing.container
    ids = getattr(result, "sequences", result)
    if not _is_measured(call, ids, result, parent):
        record_requests(_unmeasured, call, len(ids) if hasattr(ids, "__len__") else 1, parent=parent)
    if call.cache is not None:
        record_kv_cache("transformers", "", *call.cache)
    call.release()


def _is_measured(call: GenerateCall, ids: Any, result: Any, parent: Any) -> bool:
    """Record the sequences of a call, on an accelerator as soon as their lengths are on the host."""
    plan = call.plan
    if plan is None or call.result is not result or len(call.marks) < 2 or hasattr(ids, "placements"):
        return False  # to read a DTensor is a collective
    positions = int(ids.shape[1]) - plan.start
    sampling = call.sampling
    is_turn = sampling is not None and sampling.positions is not None
    if sampling is not None and sampling.positions is not None:  # TRL says which of them are tokens
        sampling.positions += positions * plan.rows
    is_known = call.done is not None
    use: Callable[[Any], Iterator[Any]] = partial(_account, call, plan, parent, positions, is_known)
    if ids.device.type != "cpu":
        return deferred.send(ids.device.type, partial(_measure, plan, call.done, ids), use)
    new_BT = ids[:, plan.start :].clone().numpy()  # the caller may write into its own, or resize it
    read = partial(_read, new_BT, plan.enders, call.done, plan.prompts, plan.returned)
    if not is_turn and isinstance(parent, Stage) and plan.decoder == "_sample":
        values = read()
        add_padding(parent, positions * plan.rows - sum(_lengths(values, positions, is_known)))
        state.add(Deferred(use, (values,)))
    else:
        state.add(Deferred(_account_deferred, (use, read)))
    return True


def _measure(plan: Plan, done: list[Any] | None, ids: Any) -> Any:
    """Find the last token of each row, whether it is an end token, and the length of its prompt: (3, rows).

    Small kernels where the ids are; no number leaves the device.
    """
    import torch

    ids_BT = ids[:, plan.start :]
    is_end_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for tokens in plan.enders:
        for token in tokens.to(ids_BT, non_blocking=True).reshape(-1):  # those of a user's own criterion are the host's
            is_end_BT |= ids_BT == token
    is_over_BT = is_end_BT if done is None else torch.stack(done, 1)
    last_B = is_over_BT.byte().argmax(1)
    stops_B = is_end_BT.gather(1, last_B[:, None])[:, 0]
    prompts_B = plan.prompts
    if isinstance(prompts_B, int):
        prompts_B = torch.full_like(last_B, prompts_B)
    elif prompts_B.shape[0] != plan.rows:  # one row for each beam
        beams = prompts_B.shape[0] * plan.returned // plan.rows
        prompts_B = prompts_B[::beams, None].expand(-1, plan.returned).reshape(-1)
    return torch.stack((last_B, stops_B.long(), prompts_B.to(last_B)))


def _fail(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    call = _leave()
    if call is None:
        return
    if call.plan is not None:
        record_requests(_failed, call, call.plan, type(error).__qualname__, isinstance(error, Exception))
    call.release()


# --- in the flusher ---------------------------------------------------------------------------------------------------


def _lengths(values: list[list[int]], positions: int, is_known: bool) -> list[int]:
    return [last + 1 if stops or is_known else positions for last, stops in zip(values[0], values[1], strict=True)]


def _read(new_BT: Any, enders: list[Any], done: list[Any] | None, prompts: Any, returned: int) -> list[list[int]]:
    """Do what ``_measure`` does for ids of the host, by numpy: it starts no threads of its own as torch may."""
    import numpy as np

    is_end_BT = np.zeros(new_BT.shape, bool)
    for tokens in enders:
        for token in tokens.reshape(-1).tolist():
            is_end_BT |= new_BT == token
    rows = range(len(new_BT))
    is_over_BT = is_end_BT if done is None else np.stack([is_over_B.numpy() for is_over_B in done], 1)
    last_B = is_over_BT.argmax(1)
    if isinstance(prompts, int):
        prompts_B = [prompts for _ in rows]
    else:
        beams = len(prompts) * returned // len(rows)  # one row for each beam
        prompts_B = [prompt for prompt in prompts.tolist()[::beams] for _ in range(returned)]
    return [last_B.tolist(), is_end_BT[rows, last_B].tolist(), prompts_B]


def _account_deferred(use: Callable[[Any], Iterator[Any]], read: Callable[[], Any]) -> Iterator[Any]:
    return use(read())


def _account(
    call: GenerateCall, plan: Plan, parent: Any, positions: int, is_known: bool, values: list[list[int]]
) -> Iterator[FinishedRequests | Count]:
    lengths = _lengths(values, positions, is_known)
    yield FinishedRequests((_requests, parent, 6, call, plan, lengths, values[1], values[2], is_known))
    if plan.decoder == "_sample":
        labels: Labels = ((vocabulary.MODE, call.sampling.mode),) if call.sampling is not None else ()
        yield Count(vocabulary.SAMPLE_PADDING, positions * len(lengths) - sum(lengths), labels)


def _requests(
    call: GenerateCall, plan: Plan, lengths: list[int], stops: list[int], prompts: list[int], is_known: bool
) -> list[Request]:
    marks = call.marks
    requests = []
    whole = _whole(call, plan)
    names = _names(call, plan, whole.id)
    for (name, sample, group), length, stop, prompt in zip(names, lengths, stops, prompts, strict=True):
        last = marks[min(length, len(marks) - 1)]
        if stop:
            finish = "stop"
        elif length >= plan.limit:
            finish = "length"
        else:
            finish = "stop" if is_known else "timeout" if plan.is_timed else ""
        requests.append(
            whole._replace(
                ended=last,
                first_token=marks[1],
                last_token=last,
                input_tokens=prompt,
                output_tokens=length,
                finish=finish,
                id=name,
                sample=sample,
                group=group,
            )
        )
    return requests


def _failed(call: GenerateCall, plan: Plan, error: str, is_error: bool) -> list[Request]:
    first = call.marks[1] if len(call.marks) > 1 else 0
    whole = _whole(call, plan)._replace(first_token=first, finish="error" if is_error else "abort", error=error)
    names = _names(call, plan, whole.id)
    return [whole._replace(id=name, sample=sample, group=group) for name, sample, group in names]


def _whole(call: GenerateCall, plan: Plan) -> Request:
    """Make what all requests of a batch share. There is no queue: a batch begins at once."""
    model = os.path.basename(str(getattr(plan.config, "_name_or_path", "") or ""))
    return _unmeasured(call, 1)[0]._replace(model=model, limit=plan.limit)


def _names(call: GenerateCall, plan: Plan, first: str) -> Iterator[tuple[str, str, str]]:
    """Name each request, its sample and, if known, its group; ``first`` is the name of the first one."""
    name, sampling = first.rpartition(".")[0], call.sampling
    for index in range(plan.rows):
        sample, group = ("", "") if sampling is None else sampling.place(index, plan.rows)
        sample = sample or (f"{name}.{index // plan.returned}" if plan.returned > 1 else "")
        yield f"{name}.{index}", sample, group


def _unmeasured(call: GenerateCall, rows: int) -> list[Request]:
    """Account for sequences of which only the duration is known."""
    policy = UNKNOWN if call.sampling is None else call.sampling.policy
    name = f"{random_bits(64):016x}"
    whole = Request(
        "transformers",
        call.submitted,
        call.ended,
        scheduled=call.submitted,
        policy_start=policy,
        policy_end=policy,
    )
    return [whole._replace(id=f"{name}.{index}") for index in range(rows)]


MIXIN = "transformers.generation.utils:GenerationMixin"
HOOKS = (
    CallbackHook(target=f"{MIXIN}.generate", before=_begin, after=_end, failed=_fail),
    *(
        CallbackHook(target=f"{MIXIN}.{name}", before=partial(_decode, name), after=_decoded, by_name=True)
        for name in ("_sample", "_beam_search", "_assisted_decoding")
    ),
    ReturnHook(target=f"{MIXIN}._has_unfinished_sequences", after=_mark),
    CallbackHook(
        target="transformers.generation.stopping_criteria:StoppingCriteriaList.__call__",
        after=_keep_done,
    ),
    *batching.HOOKS,
)
INTEGRATION = Integration(
    name="transformers_generate",
    package=PACKAGE,
    supports=SUPPORTS,
    records="requests of its `generate` and continuous batching",
    verified=Verified.REAL,
    hooks=HOOKS,
)
