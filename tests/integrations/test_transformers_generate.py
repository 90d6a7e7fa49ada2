"""transformers' generate: every sequence a request, the outputs untouched; with real models, which are tiny."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("datasets")

import torch
import transformers

import otel_rl
from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.demo import task
from otel_rl.integrations.transformers import generate
from otel_rl.process.state import state
from otel_rl.records import Count
from otel_rl.requests.queue import UNKNOWN, KvCache, Request
from tests.noted import held, take

pytestmark = pytest.mark.medium

__all__ = ["held"]

TEXTS = ("even 1?", "odd 12?", "even 123?", "odd 4?")
PROMPTS = [7, 7, 9, 6]
"""Their tokens: one a character."""
EOS, PAD = task.EOS, 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model that writes random characters."""
    transformers.utils.logging.disable_progress_bar()
    return task.model(tmp_path_factory.mktemp("generate") / "tiny", 0)


@pytest.fixture
def recording(held: None) -> None:
    """Record generate alone."""
    otel_rl.instrument(["transformers_generate"])


def inputs(*texts: str) -> dict[str, Any]:
    """Encode prompts, padded on the left."""
    return dict(task.tokenizer()(list(texts or TEXTS), padding=True, return_tensors="pt"))


class Ends(transformers.LogitsProcessor):
    """Ends each row with its end token at the length that it is given, and never before."""

    def __init__(self, start: int, *lengths: int, token: int = EOS, other: int = 5) -> None:
        self.start, self.lengths, self.token, self.other = start, lengths, token, other
        self.times: list[int] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.times.append(monotonic_ns())
        made = input_ids.shape[1] - self.start + 1
        forced = torch.full_like(scores, -1e9)
        for row, length in enumerate(self.lengths):
            forced[row, self.token if made == length else self.other] = 0.0
        return forced


class Raises(transformers.LogitsProcessor):
    """Fails at the third token."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.calls = error, 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return scores


class Stops(transformers.StoppingCriteria):
    """A user's own criterion, with a clock: it ends each row at the length that it is given."""

    def __init__(self, start: int, *lengths: int) -> None:
        self.start, self.lengths = start, lengths
        self.times: list[int] = []

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.times.append(monotonic_ns())
        made = input_ids.shape[1] - self.start
        return torch.tensor([made >= length for length in self.lengths])


def counts(rows: list[Request]) -> list[tuple[int, int, str, int]]:
    """Say what the engine was asked and gave."""
    return [(row.input_tokens, row.output_tokens, row.finish, row.limit) for row in rows]


def real(ids: Any, start: int) -> list[int]:
    """Count the tokens of each row up to its first end token."""
    rows = [row[start:].tolist() for row in ids]
    return [row.index(EOS) + 1 if EOS in row else len(row) for row in rows]


# --- the host notices nothing -----------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "greedy": lambda model: {"max_new_tokens": 12},
    "sampled": lambda model: {"max_new_tokens": 30, "do_sample": True},
    "dictionary": lambda model: {
        "max_new_tokens": 9, "do_sample": True, "return_dict_in_generate": True, "output_scores": True
    },
    "three of each": lambda model: {"max_new_tokens": 12, "do_sample": True, "num_return_sequences": 3},
    "beams": lambda model: {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2},
    "own criterion": lambda model: {
        "max_new_tokens": 30, "do_sample": True, "stopping_criteria": [Stops(9, 5, 9, 30, 1)]
    },
    "no cache": lambda model: {"max_new_tokens": 5, "use_cache": False},
    "static cache": lambda model: {"max_new_tokens": 5, "cache_implementation": "static", "disable_compile": True},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_outputs_and_random_numbers_are_identical(held: None, model: Any, name: str) -> None:
    """With and without a recording; and what was passed is as it was."""

    def run() -> tuple[Any, ...]:
        given, asked = inputs(), CALLS[name](model)
        torch.manual_seed(3)
        random.seed(3)
        before = {key: value.clone() for key, value in given.items()}
        result = model.generate(**given, **asked)
        assert all(torch.equal(before[key], given[key]) for key in before)
        scores = getattr(result, "scores", ())
        return (
            getattr(result, "sequences", result),
            *scores,
            torch.get_rng_state(),
            torch.tensor(random.randbytes(4)[0]),
        )

    plain = run()
    otel_rl.instrument(["transformers_generate"])
    recorded = run()
    otel_rl.uninstrument()
    after = run()
    assert [True] * len(plain) == [torch.equal(*pair) for pair in zip(plain, recorded, strict=True)]
    assert [True] * len(plain) == [torch.equal(*pair) for pair in zip(plain, after, strict=True)]


def test_the_model_and_its_settings_stay_as_they_were(recording: None, model: Any) -> None:
    """Nothing is hung onto the model, its configuration or what the user passed."""
    config = transformers.GenerationConfig(max_new_tokens=4, pad_token_id=PAD, eos_token_id=EOS)
    processors, criteria = transformers.LogitsProcessorList(), transformers.StoppingCriteriaList()
    before = (dict(vars(model)), model.generation_config.to_dict(), config.to_dict())
    model.generate(**inputs(), generation_config=config, logits_processor=processors, stopping_criteria=criteria)
    assert before == (dict(vars(model)), model.generation_config.to_dict(), config.to_dict())
    assert ([], []) == (list(processors), list(criteria))
    assert 4 == len(take().rows)


@pytest.mark.parametrize("eos_token_id", [EOS, [EOS], None])
def test_a_users_criterion_may_have_an_end_of_its_own(recording: None, model: Any, eos_token_id: Any) -> None:
    """In whatever form; what it ends is seen in its answer."""

    class Mine(transformers.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    criterion = Mine()
    criterion.eos_token_id = eos_token_id
    model.generate(**inputs(), max_new_tokens=5, stopping_criteria=[criterion])
    assert 4 == len(take().rows)


def test_the_recording_may_end_within_a_call(recording: None, model: Any) -> None:
    """The call goes on as if nothing had been there; nothing of it is recorded."""

    class Quits(transformers.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            otel_rl.uninstrument()
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    result = model.generate(**inputs(), max_new_tokens=5, stopping_criteria=[Quits()])
    assert (4, 14) == tuple(result.shape)
    assert [] == take().rows


def test_the_recording_may_begin_within_a_call(held: None, model: Any) -> None:
    """What had begun before is not recorded; the next call is."""

    class Begins(transformers.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            otel_rl.instrument(["transformers_generate"])
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    model.generate(**inputs(), max_new_tokens=5, stopping_criteria=[Begins()])
    assert [] == take().rows
    model.generate(**inputs(), max_new_tokens=5)
    assert 4 == len(take().rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.compile, about transformers
def test_a_compiled_call_is_left_alone(held: None, model: Any) -> None:
    """What runs inside torch.compile gives the same tokens, and is not recorded."""
    given = inputs(TEXTS[0])
    expected = model.generate(**given, max_new_tokens=3)
    otel_rl.instrument(["torch", "transformers_generate"])

    @torch.compile(backend="eager")
    def compiled(ids: Any, mask: Any) -> Any:
        return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=3)

    assert torch.equal(expected, compiled(given["input_ids"], given["attention_mask"]))
    assert ([], {}) == (take().rows, guard.errors)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_tokenizer(recording: None, model: Any) -> None:
    """Prompts without their padding, responses with their end token and without theirs."""
    torch.manual_seed(0)
    ids = model.generate(**inputs(), max_new_tokens=40, do_sample=True)
    lengths = real(ids, 9)
    rows = take().rows
    assert 1 < len(set(lengths))
    assert [len(task.tokenizer()(text)["input_ids"]) for text in TEXTS] == PROMPTS
    expected = [(p, n, "stop" if n < 40 else "length", 40) for p, n in zip(PROMPTS, lengths, strict=True)]
    assert expected == counts(rows)
    assert 4 == len({row.id for row in rows})
    assert {("transformers", "tiny", False, UNKNOWN, "", "", UNKNOWN)} == {
        (r.engine, r.model, r.streamed, r.cached_tokens, r.sample, r.group, r.policy_start) for r in rows
    }


def test_sequences_end_at_different_places(recording: None, model: Any) -> None:
    """With an end token, also as the very last one that is allowed, or at the limit; what is left is padding."""
    with otel_rl.stage("sample") as stage:
        model.generate(**inputs(), max_new_tokens=8, logits_processor=[Ends(9, 2, 8, 99, 1)])
    taken = take()
    assert [(7, 2, "stop", 8), (7, 8, "stop", 8), (9, 8, "length", 8), (6, 1, "stop", 8)] == counts(taken.rows)
    assert [stage] * 4 == taken.parents
    assert [Count(v.SAMPLE_PADDING, 6 + 7)] == taken.counts
    assert {v.TOKENS_PADDING: 13} == stage.attributes


def test_padding_of_several_batches_adds_up(recording: None, model: Any) -> None:
    """On the stage that they were made in."""
    with otel_rl.stage("sample") as stage:
        for lengths in ((2, 8, 99, 1), (3, 3, 3, 3), (1, 2, 3, 4)):
            model.generate(**inputs(), max_new_tokens=8, logits_processor=[Ends(9, *lengths)])
    assert {v.TOKENS_PADDING: 13 + 0 + 6} == stage.attributes


def test_the_caller_may_write_into_what_it_was_given(recording: None, model: Any) -> None:
    """The tokens are those that were generated, whenever the flusher reads them."""
    made = model.generate(**inputs(), max_new_tokens=8, logits_processor=[Ends(9, 2, 8, 99, 1)])
    made.fill_(5)
    assert [(7, 2, "stop", 8), (7, 8, "stop", 8), (9, 8, "length", 8), (6, 1, "stop", 8)] == counts(take().rows)


def test_several_end_tokens(recording: None, model: Any) -> None:
    """Each of them ends a sequence."""
    ends = Ends(9, 3, 4, 5, 6, token=8)
    model.generate(**inputs(), max_new_tokens=8, eos_token_id=[EOS, 8], logits_processor=[ends])
    assert [(p, n, "stop", 8) for p, n in zip(PROMPTS, (3, 4, 5, 6), strict=True)] == counts(take().rows)


@pytest.mark.parametrize("pad", [PAD, EOS])
def test_a_criterion_of_the_users_own_ends_sequences(recording: None, model: Any, pad: int) -> None:
    """Its lengths are exact too where padding looks like an end token."""
    model.generate(
        **inputs(),
        max_new_tokens=8,
        pad_token_id=pad,
        logits_processor=[Ends(9, 99, 5, 99, 99)],
        stopping_criteria=[Stops(9, 3, 99, 7, 99)],
    )
    rows = take().rows
    assert [(7, 3, "stop", 8), (7, 5, "stop", 8), (9, 7, "stop", 8), (6, 8, "length", 8)] == counts(rows)


def test_a_time_limit_is_a_timeout(recording: None, model: Any) -> None:
    """``max_time`` ends all that have not ended by themselves."""
    model.generate(**inputs(), max_new_tokens=8, max_time=1e-6, logits_processor=[Ends(9, 1, 9, 9, 9)])
    assert ["stop", "timeout", "timeout", "timeout"] == [row.finish for row in take().rows]


def test_several_sequences_of_one_prompt_share_a_sample(recording: None, model: Any) -> None:
    """Each is a request of its own, with the tokens of its own prompt."""
    torch.manual_seed(0)
    ids = model.generate(**inputs(*TEXTS[1:]), max_new_tokens=20, do_sample=True, num_return_sequences=3)
    rows = take().rows
    lengths = real(ids, 9)
    assert [p for p in PROMPTS[1:] for _ in range(3)] == [row.input_tokens for row in rows]
    assert lengths == [row.output_tokens for row in rows]
    samples = [row.sample for row in rows]
    assert [samples[0]] * 3 + [samples[3]] * 3 + [samples[6]] * 3 == samples
    assert (3, 9) == (len(set(samples)), len({row.id for row in rows}))


def test_beam_search_counts_what_it_returns(recording: None, model: Any) -> None:
    """Not its beams; static padding there is none."""
    ids = model.generate(**inputs(*TEXTS[1:]), max_new_tokens=6, num_beams=4, num_return_sequences=2)
    taken = take()
    assert [p for p in PROMPTS[1:] for _ in range(2)] == [row.input_tokens for row in taken.rows]
    assert real(ids, 9) == [row.output_tokens for row in taken.rows]
    assert [] == taken.counts


def test_an_assistants_calls_are_no_requests(recording: None, model: Any, tmp_path: Any) -> None:
    """Assisted decoding is one request, of all tokens that it gave."""
    assistant = task.model(tmp_path / "assistant", 1)
    ids = model.generate(**inputs(TEXTS[0]), max_new_tokens=20, assistant_model=assistant)
    ours = model.generate(**inputs(TEXTS[0]), max_new_tokens=20, prompt_lookup_num_tokens=3)
    one, other = take().rows
    assert [(7, real(ids, 7)[0]), (7, real(ours, 7)[0])] == [(r.input_tokens, r.output_tokens) for r in (one, other)]
    assert one.submitted < one.first_token <= one.last_token == one.ended < other.submitted < other.first_token


def test_what_a_model_generates_to_prepare_has_times_of_its_own(recording: None, model: Any, tmp_path: Any) -> None:
    """A composite model's call begins to decode behind it: none of its tokens can have been there before."""
    prepared: list[int] = []
    inner = task.model(tmp_path / "inner", 1)

    def prepare(*args: Any, **kwargs: Any) -> Any:
        inner.generate(**inputs("even 1?"), max_new_tokens=6, min_new_tokens=6, do_sample=False)
        prepared.append(monotonic_ns())
        return type(model)._prepare_model_inputs(model, *args, **kwargs)

    model._prepare_model_inputs = prepare
    try:
        model.generate(**inputs("even 1?"), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    finally:
        del model._prepare_model_inputs
    (row,) = take().rows
    assert (3, True) == (row.output_tokens, row.first_token >= prepared[0])


def test_a_streamer_makes_no_difference(recording: None, model: Any) -> None:
    """It gets its tokens, and the request is counted as always."""
    streamer = transformers.TextIteratorStreamer(task.tokenizer(), skip_prompt=True)
    arguments = {**inputs(TEXTS[0]), "max_new_tokens": 5, "streamer": streamer}
    thread = threading.Thread(target=model.generate, kwargs=arguments)
    thread.start()
    "".join(streamer)
    thread.join()
    assert [(7, 5, 5)] == [(row.input_tokens, row.output_tokens, row.limit) for row in take().rows]


def test_threads_do_not_mix(recording: None, model: Any) -> None:
    """Two batches that run at the same time have their own times and tokens."""
    threads = [
        threading.Thread(
            target=model.generate,
            kwargs={**inputs(), "max_new_tokens": length, "logits_processor": [Ends(9, length, 1, 1, 1)]},
        )
        for length in (30, 20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = take().rows
    assert [1, 1, 1, 1, 1, 1, 20, 30] == sorted(row.output_tokens for row in rows)
    assert all(row.submitted < row.first_token <= row.ended for row in rows)


def test_an_encoder_decoder(recording: None) -> None:
    """Its input is what the encoder read; its first position is no token."""
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=EOS,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    model.generate(
        input_ids=torch.full((2, 4), 7), attention_mask=mask, max_new_tokens=6, logits_processor=[Ends(1, 4, 99)]
    )
    assert [(4, 4, "stop", 6), (3, 6, "length", 6)] == counts(take().rows)


def test_embeddings_as_input(recording: None, model: Any) -> None:
    """Their number is the length of the prompt."""
    given = inputs()
    embeddings = model.get_input_embeddings()(given["input_ids"])
    model.generate(inputs_embeds=embeddings, attention_mask=given["attention_mask"], max_new_tokens=4)
    model.generate(inputs_embeds=embeddings, max_new_tokens=4)
    assert [*PROMPTS, *[9] * 4] == [row.input_tokens for row in take().rows]


# --- times ------------------------------------------------------------------------------------------------------------


def test_times_are_those_of_an_outside_observer(recording: None, model: Any) -> None:
    """Each token's time lies between the user's criterion that saw it and the user's processor of the next one."""
    lengths, before = (2, 7, 12, 12), monotonic_ns()
    criterion, processor = Stops(9, 99, 99, 99, 99), Ends(9, *lengths)
    model.generate(**inputs(), max_new_tokens=12, logits_processor=[processor], stopping_criteria=[criterion])
    after = monotonic_ns()
    rows = take().rows
    assert (12, 12) == (len(criterion.times), len(processor.times))
    ends = [*processor.times[1:], after]
    assert {True} == {before <= row.submitted == row.scheduled <= processor.times[0] for row in rows}
    assert {True} == {criterion.times[0] <= row.first_token <= ends[0] for row in rows}
    for row, length in zip(rows, lengths, strict=True):
        assert criterion.times[length - 1] <= row.last_token == row.ended <= ends[length - 1]


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "finish"), [(LookupError("no"), "error"), (KeyboardInterrupt(), "abort")])
def test_an_error_in_the_middle(recording: None, model: Any, error: BaseException, finish: str) -> None:
    """The host gets its very exception; every sequence of the batch is a failed request, and the next batch is well."""
    with otel_rl.stage("sample") as stage, pytest.raises(type(error)) as caught:
        model.generate(
            **inputs(), max_new_tokens=8, num_return_sequences=2, do_sample=True, logits_processor=[Raises(error)]
        )
    taken = take()
    assert caught.value is error
    assert [(finish, type(error).__name__, UNKNOWN, 8)] * 8 == [
        (row.finish, row.error, row.output_tokens, row.limit) for row in taken.rows
    ]
    assert all(row.submitted < row.first_token < row.ended and row.last_token == 0 for row in taken.rows)
    assert [stage] * 8 == taken.parents
    model.generate(**inputs(), max_new_tokens=3)
    assert 4 == len(take().rows)


def test_a_call_that_never_began_is_no_request(recording: None, model: Any) -> None:
    """Its arguments were wrong."""
    with pytest.raises(ValueError, match="nonsense"):
        model.generate(**inputs(), nonsense=3)
    assert [] == take().rows
    model.generate(**inputs(), max_new_tokens=3)
    assert 4 == len(take().rows)


def test_a_decoding_of_the_users_own(recording: None, model: Any) -> None:
    """Is counted where it only passes on; where it gives something else, only its duration is known."""

    def passes_on(model: Any, input_ids: Any, **kwargs: Any) -> Any:
        return model._sample(input_ids, **kwargs)

    def changes(model: Any, input_ids: Any, **kwargs: Any) -> Any:
        return model._sample(input_ids, **kwargs)[:, :-1]

    def calls_again(model: Any, input_ids: Any, **kwargs: Any) -> Any:
        return model.generate(input_ids, max_new_tokens=3)

    processor = [Ends(9, 2, 3, 4, 5)]
    model.generate(**inputs(), max_new_tokens=8, custom_generate=passes_on, logits_processor=processor)
    assert [2, 3, 4, 5] == [row.output_tokens for row in take().rows]
    model.generate(**inputs(), max_new_tokens=8, custom_generate=changes)
    rows = take().rows
    assert [(UNKNOWN, UNKNOWN, 0, 0)] * 4 == [
        (row.input_tokens, row.output_tokens, row.first_token, row.last_token) for row in rows
    ]
    assert all(row.submitted < row.ended for row in rows)
    ids = model.generate(**inputs(), max_new_tokens=8, custom_generate=calls_again)
    assert real(ids, 9) == [row.output_tokens for row in take().rows]


# --- devices ----------------------------------------------------------------------------------------------------------


def test_on_a_device_lengths_come_later(recording: None, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read when generate returns; the requests follow when their numbers have arrived."""
    sent: list[Any] = []
    monkeypatch.setattr(generate.deferred, "send", lambda *arguments: sent.append(arguments) or True)

    class Elsewhere(torch.Tensor):
        device = SimpleNamespace(type="cuda")

    plan = generate.Plan(
        "_sample",
        model,
        inputs()["input_ids"],
        {
            "generation_config": SimpleNamespace(max_length=12, num_return_sequences=1, num_beams=1),
            "stopping_criteria": [SimpleNamespace(eos_token_id=torch.tensor([EOS]))],
            "attention_mask": inputs()["attention_mask"],
        },
    )
    call = generate.GenerateCall(None, model)
    call.plan, call.marks = plan, [1, 2, 3, 4]
    new = torch.tensor([[5, EOS, 0], [5, 5, EOS], [5, 5, 5], [EOS, 0, 0]])
    call.result = torch.cat((inputs()["input_ids"], new), 1).as_subclass(Elsewhere)
    assert generate._is_measured(call, call.result, call.result, None)
    assert [] == take().rows
    ((kind, make, use),) = sent
    for record in use(make().tolist()):
        state.add(record)
    taken = take()
    assert "cuda" == kind
    assert [(7, 2, "stop", 3), (7, 3, "stop", 3), (9, 3, "length", 3), (6, 1, "stop", 3)] == counts(taken.rows)
    assert [Count(v.SAMPLE_PADDING, 3)] == taken.counts


def test_what_it_returns_can_be_resized(recording: None, tmp_path: Any) -> None:
    """numpy, given a tensor itself, would forbid that for good."""
    ids = task.model(tmp_path / "tiny", 0).generate(**inputs(), max_new_tokens=8)
    assert ids.resize_(ids.numel() * 2) is ids


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu(recording: None, tmp_path: Any) -> None:
    """The same requests as on the host, without waiting for the device; they are there with the next call."""
    model = task.model(tmp_path / "tiny", 0).cuda()
    given = {key: value.cuda() for key, value in inputs().items()}
    model.generate(**given, max_new_tokens=8, logits_processor=[Ends(9, 2, 8, 99, 1)])
    torch.cuda.synchronize()
    model.generate(**given, max_new_tokens=8)
    while state.queue and not hasattr(state.queue[0], "function"):
        state.queue.popleft()
    later = state.queue.popleft()
    for record in later.function(*later.arguments):
        state.add(record)
    assert [(7, 2, "stop", 8), (7, 8, "stop", 8), (9, 8, "length", 8), (6, 1, "stop", 8)] == counts(take().rows)


# --- memory -----------------------------------------------------------------------------------------------------------


def caches() -> list[tuple[int | None, int | None]]:
    """Give the bytes that were told of caches, and forget everything."""
    found = [(one.size, one.used) for one in state.queue if isinstance(one, KvCache)]
    state.queue.clear()
    return found


def position(model: Any) -> int:
    """Say how many bytes one position of one sequence takes."""
    config = model.config
    heads = config.num_hidden_layers * config.num_key_value_heads
    return int(2 * heads * config.hidden_size // config.num_attention_heads * model.dtype.itemsize)


@pytest.mark.parametrize(("name", "rows"), [("greedy", 4), ("three of each", 12), ("beams", 12)])
def test_the_cache_is_told_as_it_is_at_the_end(recording: None, model: Any, name: str, rows: int) -> None:
    """Every position but that of the last token, of every row: those of beams and of padding too."""
    given = inputs()
    ids = model.generate(**given, **CALLS[name](model), min_new_tokens=12)
    assert [(None, rows * (ids.shape[1] - 1) * position(model))] == caches()


def test_a_static_cache_is_told_as_it_was_made(recording: None, model: Any) -> None:
    """For as many positions as may come to be."""
    given = inputs()
    ids = model.generate(**given, **CALLS["static cache"](model), min_new_tokens=5)
    assert [(4 * (ids.shape[1] - 1) * position(model), None)] == caches()


def test_a_call_without_a_cache_tells_none(recording: None, model: Any) -> None:
    """Nor one that fails; and none is kept alive."""
    model.generate(**inputs(), **CALLS["no cache"](model))
    with pytest.raises(RuntimeError):
        model.generate(**inputs(), max_new_tokens=9, logits_processor=[Raises(RuntimeError("of the host"))])
    assert [] == caches()


def test_no_cache_is_kept_alive(recording: None, model: Any) -> None:
    """Its bytes are read while its caller still has it."""
    cache = transformers.DynamicCache()
    model.generate(**inputs(), max_new_tokens=3, past_key_values=cache)
    gone = weakref.ref(cache)
    del cache
    assert None is gone()
