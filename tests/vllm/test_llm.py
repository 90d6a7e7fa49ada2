"""vLLM's LLM, in bulk: the same answers, exact counts, the caller's stage as parent, with statistics and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.requests.queue import UNKNOWN, Request
from tests.vllm.scenario import ENGINE, PROMPTS, TOO_LONG, Seen, outputs, recorded

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@dataclass
class Bulk:
    """Three calls of ``generate()``, two of them in a rollout, and the first again without a recording."""

    seen: Seen
    has_statistics: bool
    stage: Any
    outside: Any
    """The container of the step."""
    recorded: list[Any]
    children: list[Any]
    texts: list[Any]
    plain: list[Any]
    refused: Seen
    """Recordings of a prompt that is too long among others, and of one that the engine itself finds wrong."""
    wrong: Seen


@pytest.fixture(scope="module", params=[True, False], ids=["statistics", "plain"])
def bulk(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bulk]:
    """An engine with and one without statistics."""
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMValidationError

    greedy = SamplingParams(max_tokens=32, temperature=0, logprobs=2)
    with recorded(tmp_path_factory.mktemp("runs")) as seen:
        llm = LLM(str(model), disable_log_stats=not request.param, **ENGINE)
        with otel_rl.step(1) as outside:
            with otel_rl.stage("sample") as stage:
                first = llm.generate(PROMPTS, greedy, use_tqdm=False)
                params = SamplingParams(n=3, max_tokens=8, temperature=1)
                children = llm.generate(PROMPTS[:2], params, use_tqdm=False)
            texts = llm.generate(["one", "two and more"], greedy, use_tqdm=False)
    plain = llm.generate(PROMPTS, greedy, use_tqdm=False)
    seens = []
    for prompt in (TOO_LONG, {"prompt_token_ids": [99_999]}):
        with recorded(tmp_path_factory.mktemp("runs")) as refused, otel_rl.step(1), pytest.raises(VLLMValidationError):
            llm.generate([PROMPTS[0], prompt, PROMPTS[1]], SamplingParams(n=2, max_tokens=8), use_tqdm=False)
        seens.append(refused)
    yield Bulk(seen, request.param, stage, outside, first, children, texts, plain, *seens)
    llm.llm_engine.engine_core.shutdown()


def test_answers_are_the_same(bulk: Bulk) -> None:
    """Token ids, texts and log-probabilities, recorded and not."""
    assert outputs(bulk.plain) == outputs(bulk.recorded)


def test_every_sequence_is_a_request(bulk: Bulk) -> None:
    """Once each, n of one prompt too, with the tokens that the caller got."""
    expected = [
        (result.request_id, len(result.prompt_token_ids), len(one.token_ids), one.finish_reason)
        for result in (*bulk.recorded, *bulk.children, *bulk.texts)
        for one in result.outputs
    ]
    rows = [(row.sample, row.input_tokens, row.output_tokens, row.finish) for row in bulk.seen.rows]
    assert sorted(expected) == sorted(rows)
    assert len(rows) == len({row.id for row in bulk.seen.rows})
    assert {3} == {len(bulk.seen.sample(result.request_id)) for result in bulk.children}


def test_a_refused_prompt_is_an_error(bulk: Bulk) -> None:
    """Wherever it is refused, once for each sequence; those before it are aborted, those behind it never submitted."""
    for seen in (bulk.refused, bulk.wrong):
        said = [(row.finish, row.error, row.limit, row.streamed) for row in seen.rows]
        assert sorted([("abort", "", 8, False)] * 2 + [("error", "VLLMValidationError", 8, False)] * 2) == sorted(said)
        assert [1, 1] == [len({row.sample for row in seen.rows if row.finish == end}) for end in ("abort", "error")]


def test_tokens_are_those_of_the_tokenizer(bulk: Bulk, model: Path) -> None:
    """Of the prompts that were given as texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    expected = [len(tokenizer(text).input_ids) for text in ("one", "two and more")]
    assert expected == [bulk.seen.sample(result.request_id)[0].input_tokens for result in bulk.texts]


def test_the_parent_is_the_stage_of_the_caller(bulk: Bulk) -> None:
    """The rollout that is open, else the step."""
    inside = {row.id for result in (*bulk.recorded, *bulk.children) for row in bulk.seen.sample(result.request_id)}
    expected = {row.id: bulk.stage if row.id in inside else bulk.outside for row in bulk.seen.rows}
    assert expected == bulk.seen.parents


def test_what_a_request_says_of_itself(bulk: Bulk) -> None:
    """All alike: one engine, in bulk, without aborts."""
    said = {(row.engine, row.model, row.replica, row.streamed, row.error, row.policy_start) for row in bulk.seen.rows}
    assert {("vllm", "tiny-qwen2", "0", False, "", UNKNOWN)} == said
    assert {32, 8} == {row.limit for row in bulk.seen.rows}
    assert {0 if bulk.has_statistics else UNKNOWN} == {row.preemptions for row in bulk.seen.rows}


def test_times_are_in_order(bulk: Bulk) -> None:
    """With statistics all are there; without, only those of the caller's side."""
    for row in bulk.seen.rows:
        times = [row.submitted, row.scheduled, row.first_token, row.last_token, row.ended]
        if bulk.has_statistics:
            assert times == sorted(times)
            assert row.first_token > 0
        else:
            assert [0, 0, 0] == times[1:4]
            assert 0 < row.submitted < row.ended
    assert bulk.stage.began <= min(row.submitted for row in bulk.seen.rows)


def test_cached_tokens_are_whole_blocks(bulk: Bulk) -> None:
    """Of the longest prompts, whose beginning the engine had seen, and never more than there are."""
    assert all(0 <= row.cached_tokens < row.input_tokens for row in bulk.seen.rows)


def test_load_is_told_with_statistics_only(bulk: Bulk) -> None:
    """And it ends with an engine that is idle."""
    if not bulk.has_statistics:
        assert [] == bulk.seen.loads
        return
    assert {("vllm", "0")} == {load[:2] for load in bulk.seen.loads}
    assert 1 < max(load[3] for load in bulk.seen.loads) <= ENGINE["max_num_seqs"]
    assert 0 < max(load[5] for load in bulk.seen.loads) < 1
    assert (0, 0) == bulk.seen.loads[-1][3:5]


def test_missing_statistics_are_said_once(bulk: Bulk) -> None:
    """In the journal, where the doctor finds it."""
    said = [
        (log.attributes[v.PROVIDER], log.attributes[v.REQUEST_MODEL]) for log in bulk.seen.run.logs(v.NO_STATISTICS)
    ]
    assert ([] if bulk.has_statistics else [("vllm", "tiny-qwen2")]) == said


def test_requests_reach_the_journal(bulk: Bulk) -> None:
    """As spans below the rollout, and all of them in the count."""
    assert {Request} == {type(row) for row in bulk.seen.rows}
    run = bulk.seen.run
    spans = [span for span in run.spans(None) if span.name == "generate_content tiny-qwen2"]
    assert len(bulk.seen.rows) == len(spans)
    expected = {row.id: bulk.seen.parents[row.id].span_id for row in bulk.seen.rows}
    found = {span.attributes[v.RESPONSE_ID]: int.from_bytes(span.parent_id, "big") for span in spans}
    assert expected == found
    latest: dict[Any, float] = {}
    for point in run.points(v.REQUESTS):
        latest[tuple(sorted(point.attributes.items()))] = point.value
    assert len(bulk.seen.rows) == sum(latest.values())
