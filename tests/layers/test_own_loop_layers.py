"""The four log layers of a loop of a user's own: whole records, their spans, and what goes wrong."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from threading import Event
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.layers import sample_records
from otel_rl.layers.kept_samples import FinishedSample
from otel_rl.layers.memory import add_samples
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Loss
from otel_rl.runs import otlp_json
from tests.fixtures import WALL_NS, Recording
from tests.layers.records import Record, layered, records

NAN = float("nan")
STEP_7 = {v.LOOP_NAME: "train", v.ITERATION: 7}


def counted(run: Any, name: str, reason: str = "") -> float:
    """Return the last value of a counter."""
    return sum(point.value for point in run.last_points(name) if point.attributes.get(v.REASON, "") == reason)


def test_a_step_has_all_four_layers(recording: Recording) -> None:
    """Each with its span, the user's numbers in the line of the loop, and nothing else."""
    with otel_rl.step(7):
        recording.tick(10)
        with otel_rl.stage("sample", **{v.SAMPLE_BATCH_SIZE: 2}):
            recording.tick(30)
            for number in range(2):
                otel_rl.sample(
                    id=f"7.{number}", group="7", reward=number, rewards={"digits": number, "short": 0.5},
                    advantage=number - 0.5, prompt_tokens=4, response_tokens=10 + number, environment_tokens=3 * number,
                    turns=1 + number, tool_calls=number, finish="stop", policy_version=6,
                    discarded="stale" if number else "",
                )  # fmt: skip
        otel_rl.record(v.KL_REFERENCE, 0.02)
        with otel_rl.stage("train"):
            recording.tick(60)
            otel_rl.record(v.LOSS, 0.25)
            otel_rl.record(v.LOSS, 0.125)
            otel_rl.record(v.GRAD_NORM, 1.5)
        otel_rl.record("mine/temperature", 0.7)
        otel_rl.record(v.EPOCH, 0.5)
        otel_rl.record(v.LEARNING_RATE, 1e-5)
    expected = [
        Record(
            v.LOOP_LINE, v.LOOP, "step 7: 0.1 s, loop epoch 0.5, train learning rate 1e-05",
            {
                **STEP_7, v.STEP_SECONDS: 0.1, v.ELAPSED: 0.1, v.EPOCH: 0.5, v.LEARNING_RATE: 1e-5,
                "user.mine/temperature": 0.7,
            },
        ),
        Record(
            v.ROLLOUT_LINE, v.SAMPLE,
            "rollout of step 7, sample batch size 2, reward score 0.5, reward std 0.7071, train kl reference 0.02, "
            "sample response length 12, sample response min length 10, sample response max length 14",
            {
                **STEP_7, v.SAMPLE_BATCH_SIZE: 2, v.REWARD_SCORE: 0.5, v.REWARD_STD: math.sqrt(0.5),
                v.RESPONSE_LENGTH: 12.0, v.RESPONSE_MIN: 10, v.RESPONSE_MAX: 14, v.KL_REFERENCE: 0.02,
                v.RESPONSE_QUANTILES: (10, 10, 10, 14, 14),
            },
        ),
        Record(
            v.UPDATE_LINE, v.TRAIN, "update of step 7, train loss 0.125, train grad norm 1.5, train kl reference 0.02",
            {**STEP_7, v.LOSS: 0.125, v.GRAD_NORM: 1.5, v.KL_REFERENCE: 0.02},
        ),
        *(
            Record(
                v.SAMPLE_RECORD, v.SAMPLE,
                ("sample 7.0, reward 0, 10 tokens, stop", "sample 7.1, reward 1, 14 tokens, stop, stale")[number],
                {
                    **STEP_7, v.SAMPLE_ID: f"7.{number}", v.GROUP_ID: "7", v.POLICY_VERSION: 6, v.TOKENS_PROMPT: 4,
                    v.TOKENS_RESPONSE: 10 + number, v.TOKENS_ENVIRONMENT: 3 * number, v.SAMPLE_TURNS: 1 + number,
                    v.SAMPLE_TOOL_CALLS: number, v.SAMPLE_REWARD: float(number), v.SAMPLE_ADVANTAGE: number - 0.5,
                    v.SAMPLE_FINISH: "stop", v.SAMPLE_USED: not number, f"{v.SAMPLE_REWARD}.digits": float(number),
                    f"{v.SAMPLE_REWARD}.short": 0.5, **({v.SAMPLE_DISCARDED: "stale"} if number else {}),
                },
            )
            for number in range(2)
        ),
    ]  # fmt: skip
    run = recording.stop()
    assert expected == records(run)
    ms = [(log.time_ns - WALL_NS) / 1e6 - 1_000 for log in layered(run)]
    assert [100, 100, 100, 40, 40] == ms


NUMBERS = (
    v.REWARD_SCORE, v.REWARD_STD, v.REWARD_ZERO_STD, v.FUNCTION_SCORE,
    v.RESPONSE_LENGTH, v.RESPONSE_MIN, v.RESPONSE_MAX, v.RESPONSE_CLIPPED,
)  # fmt: skip


def numbers(run: Any) -> dict[str, list[float]]:
    """Return the points of numbers that samples tell, in their order."""
    found = {
        ".".join([name, *point.attributes.values()]): [one.value for one in run.points(name)]
        for name in NUMBERS
        for point in run.points(name)
    }
    return {name: found[name] for name in sorted(found)}


def test_samples_tell_the_numbers_of_their_step(recording: Recording) -> None:
    """A loop that records each sample need not record their mean."""
    for step in range(2):
        with otel_rl.step(step):
            recording.tick(10)
            for number in range(4):
                otel_rl.sample(
                    group=str(number // 2), reward=float(number // 2 * step * number), rewards={"digits": number},
                    response_tokens=10 + number, finish="length" if number < step else "stop",
                )  # fmt: skip
    run = recording.stop()
    assert numbers(run) == {
        f"{v.FUNCTION_SCORE}.digits": [1.5, 1.5],
        v.REWARD_SCORE: [0.0, 1.25],
        v.REWARD_STD: [0.0, 1.5],
        v.REWARD_ZERO_STD: [1.0, 0.5],
        v.RESPONSE_CLIPPED: [0.0, 0.25],
        v.RESPONSE_LENGTH: [11.5, 11.5],
        v.RESPONSE_MAX: [13, 13],
        v.RESPONSE_MIN: [10, 10],
    }
    assert [10, 20] == [(point.time_ns - WALL_NS) / 1e6 - 1_000 for point in run.points(v.REWARD_SCORE)]


def test_samples_tell_no_number_that_is_recorded_or_not_known_of_all(recording: Recording) -> None:
    """NaN of one sample makes the mean NaN."""
    with otel_rl.step(1):
        recording.tick(10)
        otel_rl.record(v.RESPONSE_LENGTH, 7)
        otel_rl.sample(reward=NAN, rewards={"digits": 1}, response_tokens=10, group="a", finish="stop")
        otel_rl.sample(reward=1.0, response_tokens=20, group="b")
    found = numbers(recording.stop())
    assert {v.RESPONSE_LENGTH, v.RESPONSE_MIN, v.RESPONSE_MAX, v.REWARD_SCORE, v.REWARD_STD} == found.keys()
    assert [7.0] == found[v.RESPONSE_LENGTH]
    assert math.isnan(found[v.REWARD_SCORE][0])


def test_groups_of_rewards_that_are_no_numbers_are_not_equal(recording: Recording) -> None:
    """Not even if all are the same NaN."""
    with otel_rl.step(1):
        recording.tick(10)
        for _ in range(2):
            otel_rl.sample(group="a", reward=NAN)
    assert [0.0] == numbers(recording.stop())[v.REWARD_ZERO_STD]


def test_samples_of_an_evaluation_are_in_no_number_of_the_step(recording: Recording) -> None:
    """Wherever in it they are made; their records say what they are."""
    with otel_rl.step(1):
        recording.tick(10)
        otel_rl.sample(id="a", reward=1.0)
        with otel_rl.stage("evaluate"):
            otel_rl.sample(id="b", reward=0.0)
            with otel_rl.stage("sample"):
                otel_rl.sample(id="c", reward=0.0)
    with otel_rl.step(2):
        recording.tick(10)
        with otel_rl.stage("evaluate"):
            otel_rl.sample(id="d", reward=0.0)
    run = recording.stop()
    assert {v.REWARD_SCORE: [1.0], v.REWARD_STD: [0.0]} == numbers(run)
    modes = [(one.attributes[v.SAMPLE_ID], one.attributes.get(v.MODE)) for one in records(run, v.SAMPLE_RECORD)]
    assert [("a", None), ("b", "eval"), ("c", "eval"), ("d", "eval")] == modes
    assert [(1, 1)] == [
        (one.attributes[v.ITERATION], one.attributes[v.SAMPLE_BATCH_SIZE]) for one in records(run, v.ROLLOUT_LINE)
    ]


def test_samples_of_a_user_beside_those_of_a_framework_tell_no_numbers(recording: Recording) -> None:
    """The framework has recorded them."""
    with otel_rl.step(1) as span:
        recording.tick(10)
        otel_rl.sample(reward=1.0)
        otel_rl.flush()
        add_samples(span, [FinishedSample(reward=0.0)])
    assert {} == numbers(recording.stop())


def test_numbers_belong_to_the_step_of_their_time(recording: Recording) -> None:
    """After its block a step goes on until the next one begins; a number of no step is in no line."""
    otel_rl.record("before", 1)
    for number in range(3):
        with otel_rl.step(number):
            recording.tick(10)
            otel_rl.record("inside", number)
        recording.tick(10)
        otel_rl.record("behind", number)
    lines = records(recording.stop(), v.LOOP_LINE)
    found = [{key: value for key, value in line.attributes.items() if key.startswith(v.USER)} for line in lines]
    assert [{"user.inside": n, "user.behind": n} for n in range(2)] + [{"user.inside": 2.0}] == found
    assert [0.02, 0.04, 0.05] == [round(line.attributes[v.ELAPSED], 9) for line in lines]


def test_many_fast_steps_each_have_their_line(recording: Recording) -> None:
    """Also if one cycle of the flusher sees all of them."""
    for number in range(300):
        with otel_rl.step(number):
            recording.tick(1)
            otel_rl.record("n", number)
    lines = records(recording.stop(), v.LOOP_LINE)
    assert [(n, n) for n in range(300)] == [(one.attributes[v.ITERATION], one.attributes["user.n"]) for one in lines]


def test_a_step_that_only_trains_has_no_line_of_a_rollout(recording: Recording) -> None:
    """KL alone makes none: trainers measure it when they train again on older samples."""
    with otel_rl.step(1):
        recording.tick(1)
        otel_rl.record(v.KL_REFERENCE, 0.1)
    assert [v.LOOP_LINE, v.UPDATE_LINE] == [record.event for record in records(recording.stop())]


def test_a_step_that_fails_says_so(recording: Recording) -> None:
    """Its line is an error; the samples that it has made are recorded."""
    with pytest.raises(LookupError), otel_rl.step(3):
        otel_rl.sample(id="a", error=LookupError("x"))
        raise LookupError("gone")
    loop, rollout, sample = records(recording.stop())
    assert (17, "LookupError", "step 3: 0 s, LookupError") == (loop.severity, loop.attributes[v.ERROR_TYPE], loop.body)
    assert v.ROLLOUT_LINE == rollout.event
    assert (13, "sample a, LookupError") == (sample.severity, sample.body)
    assert "LookupError" == sample.attributes[v.ERROR_TYPE]


def test_rank_1_has_its_samples_and_the_users_numbers(rank_1: Recording) -> None:
    """The other lines are rank 0's."""
    for number in range(2):
        with otel_rl.step(number):
            rank_1.tick(1)
            otel_rl.record(v.REWARD_SCORE, 0.5)
            otel_rl.sample(id=f"{number}")
            if number:
                otel_rl.record("mine", 3)
    otel_rl.uninstrument()
    (run,) = [rank_1.run(path.name) for path in rank_1.root.iterdir() if not path.name.startswith(".")]
    found = records(run)
    assert [(v.LOOP_LINE, 1), (v.SAMPLE_RECORD, 0), (v.SAMPLE_RECORD, 1)] == [
        (one.event, one.attributes[v.ITERATION]) for one in found
    ]
    assert f"{v.RANK_SPAN} 1" == found[0].span
    assert 3.0 == found[0].attributes["user.mine"]


def test_the_export_has_the_records(recording: Recording) -> None:
    """Standard OTLP, with the name of the event and the ids of the span; NaN as protobuf writes it."""
    with otel_rl.step(7):
        otel_rl.sample(id="a", reward=NAN)
    requests = [json.loads(line) for line, _ in otlp_json.lines(recording.stop())]
    logs = [
        log
        for request in requests
        for resource in request.get("resourceLogs", ())
        for scope in resource["scopeLogs"]
        for log in scope["logRecords"]
    ]
    spans = {
        span["spanId"]: span["name"]
        for request in requests
        for resource in request.get("resourceSpans", ())
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }
    assert [(v.LOOP_LINE, v.LOOP), (v.ROLLOUT_LINE, v.LOOP), (v.SAMPLE_RECORD, f"{v.RANK_SPAN} 0")] == [
        (log["eventName"], spans[log["spanId"]]) for log in logs
    ]
    values = {attribute["key"]: attribute["value"] for attribute in logs[-1]["attributes"]}
    assert {"doubleValue": "NaN"} == values[v.SAMPLE_REWARD]


# --- bad input --------------------------------------------------------------------------------------------------------


def test_nan_everywhere(recording: Recording) -> None:
    """Numbers stay NaN, counts are left out and counted, and a reward that is none is a failure."""
    with otel_rl.step(7):
        recording.tick(1)
        for name in v.SETTABLE:
            otel_rl.record(name, NAN)
        otel_rl.record("mine", math.inf)
        counts: Any = dict.fromkeys(
            ("prompt_tokens", "response_tokens", "environment_tokens", "turns", "tool_calls", "policy_version"), NAN
        )
        otel_rl.sample(id="a", reward=NAN, rewards={"f": NAN}, advantage=-math.inf, **counts)
    run = recording.stop()
    *lines, sample = records(run)
    assert [v.LOOP_LINE, v.ROLLOUT_LINE, v.UPDATE_LINE] == [line.event for line in lines]
    numbers = {key: value for line in lines for key, value in line.attributes.items() if isinstance(value, float)}
    of_lines = {*v.SETTABLE} - {v.REWARD_MAX, v.REWARD_MIN, v.ADVANTAGE_MEAN, v.ADVANTAGE_MAX, v.ADVANTAGE_MIN}
    assert of_lines == {key for key, value in numbers.items() if math.isnan(value)}
    assert math.inf == numbers["user.mine"]
    assert {**STEP_7, v.SAMPLE_ID: "a", v.SAMPLE_USED: True, v.SAMPLE_ADVANTAGE: -math.inf} == {
        key: value for key, value in sample.attributes.items() if not key.startswith(v.SAMPLE_REWARD)
    }
    assert {v.SAMPLE_REWARD, f"{v.SAMPLE_REWARD}.f"} <= sample.attributes.keys()
    assert 13 == sample.severity
    assert 6 == counted(run, v.SELF_CHANGED, "sample_value_left_out")


def test_what_is_no_value_is_left_out(recording: Recording) -> None:
    """Anything may be given; markup stays as it is, for whoever shows it to escape."""
    wrong: Any = {"reward": "high", "advantage": object(), "prompt_tokens": -1, "turns": 2**60, "rewards": [1, 2]}
    with otel_rl.step(7):
        otel_rl.sample(id="<b>&\ud800", group="x" * 5_000, finish=3, **wrong)  # type: ignore[arg-type]
    run = recording.stop()
    (sample,) = records(run, v.SAMPLE_RECORD)
    expected = {**STEP_7, v.SAMPLE_ID: "<b>&\ufffd", v.GROUP_ID: "x" * 1024, v.SAMPLE_FINISH: "3", v.SAMPLE_USED: True}
    assert expected == sample.attributes
    assert 4 == counted(run, v.SELF_CHANGED, "sample_value_left_out")


def test_ten_thousand_samples_a_step_are_bounded(recording: Recording) -> None:
    """The first failures, the extremes and a sample by hash; the line of the rollout is about all of them."""
    with otel_rl.step(7):
        for number in range(10_000):
            finish = "error" if number % 100 == 50 else "stop"
            otel_rl.sample(id=f"s{number}", reward=number / 100, response_tokens=10_000 - number, finish=finish)
    run = recording.stop()
    samples = records(run, v.SAMPLE_RECORD)
    kept: dict[str, list[str]] = {}
    for sample in samples:
        for reason in sample.attributes[v.SAMPLE_KEPT].split(","):
            kept.setdefault(reason, []).append(sample.attributes[v.SAMPLE_ID])
    assert 256 == len(samples)
    assert [f"s{100 * n + 50}" for n in range(64)] == kept["failed"]
    assert [f"s{n}" for n in range(9_992, 10_000)] == kept["best"]
    assert [f"s{n}" for n in range(8)] == kept["worst"] == kept["longest"]
    assert 256 - 64 - 8 - 8 <= len(kept["sample"])
    assert 10_000 - 256 == counted(run, v.SAMPLES_OMITTED)
    (rollout,) = records(run, v.ROLLOUT_LINE)
    assert 10_000 == rollout.attributes[v.SAMPLE_BATCH_SIZE]
    assert 100 == rollout.attributes[v.REQUESTS_FAILED]
    assert (500, 2_500, 5_000, 7_500, 9_500) == rollout.attributes[v.RESPONSE_QUANTILES]


def test_no_records_of_samples(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting 0 leaves all of them out; they are counted."""
    monkeypatch.setenv("OTEL_RL_SAMPLE_RECORDS", "0")
    stubbed.start()
    with otel_rl.step(7):
        otel_rl.sample(id="a", reward=0.5)
    run = stubbed.stop()
    assert [v.LOOP_LINE, v.ROLLOUT_LINE] == [record.event for record in records(run)]
    assert 1 == counted(run, v.SAMPLES_OMITTED)


def test_lines_that_come_too_fast_are_counted(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop of empty steps writes so many lines at once, and then so many a second."""
    monkeypatch.setattr("otel_rl.layers.step_lines.monotonic", lambda: 0.0)
    recording = stubbed.start()
    for number in range(2_000):
        with otel_rl.step(number):
            recording.tick(1)
    run = recording.stop()
    assert 1_500 == len(records(run, v.LOOP_LINE))
    assert 500 == counted(run, v.SELF_DROPPED, "too_fast")
    assert ["otel_rl: lines of steps come too fast; some are left out and counted"] == caplog.messages


def test_samples_outside_of_steps(recording: Recording) -> None:
    """They belong to set-up, and end with it."""
    otel_rl.sample(id="early")
    with otel_rl.step(7):
        pass
    run = recording.stop()
    (sample,) = records(run, v.SAMPLE_RECORD)
    assert (f"{v.RANK_SPAN} 0", {v.SAMPLE_ID: "early", v.SAMPLE_USED: True}) == (sample.span, sample.attributes)


def test_an_unsampled_step_has_lines_but_no_samples(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it has metrics but no spans."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    stubbed.start()
    with otel_rl.step(7):
        otel_rl.sample(id="a", reward=1.0)
    run = stubbed.stop()
    assert [v.LOOP_LINE, v.ROLLOUT_LINE] == [record.event for record in records(run)]
    assert 1 == counted(run, v.SAMPLES_OMITTED)


# --- texts ------------------------------------------------------------------------------------------------------------


def hide(text: str) -> str:
    """Redact: names become stars."""
    return text.replace("Ada", "***")


def fail(text: str) -> str:
    """Fail at some texts."""
    if "secret" in text:
        raise ValueError(text)
    return text


def leave(text: str) -> str:
    """End the program."""
    raise SystemExit(text)


def forget(text: str) -> None:
    """Return nothing, as a function does that was not finished."""


HELD = Event()
"""Lets a function go on that hangs."""


def hang(text: str) -> str:
    """Do not return until the test is over."""
    HELD.wait()
    return text


class Derived(str):
    """A text that says something else of itself."""

    def __str__(self) -> str:
        return "Ada"


def derive(text: str) -> str:
    """Return a text of a derived class."""
    return Derived("***")


def texts(run: Any) -> list[tuple[Any, Any]]:
    """Return the texts of the samples."""
    return [
        (s.attributes.get(v.SAMPLE_PROMPT), s.attributes.get(v.SAMPLE_RESPONSE)) for s in records(run, v.SAMPLE_RECORD)
    ]


@pytest.fixture
def told(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Record texts with these settings."""

    def tell(redact: str = "", capture: str = "true") -> Any:
        monkeypatch.setenv("OTEL_RL_CAPTURE_CONTENT", capture)
        monkeypatch.setenv("OTEL_RL_REDACT", redact and f"{__name__}:{redact}")
        stubbed.start()
        with otel_rl.step(7):
            otel_rl.sample(id="a", prompt="I am Ada", response="Hello Ada")
            otel_rl.sample(id="b", prompt="Hm", response="a secret")
            otel_rl.sample(id="c", prompt=[{"role": "user", "content": "Ada"}], response="x" * 3_000_000)
        return stubbed.stop()

    return tell


def test_texts_are_recorded_only_if_they_may_be(told: Any) -> None:
    """By default there is none."""
    assert [(None, None)] * 3 == texts(told(capture="false"))


def test_texts_are_cut(told: Any) -> None:
    """A response of a million tokens as well; messages become text."""
    run = told()
    messages = "[\"{'role': 'user', 'content': 'Ada'}\"]"
    expected = [("I am Ada", "Hello Ada"), ("Hm", "a secret"), (messages, "x" * 2048)]
    found = texts(run)
    assert expected[:2] == found[:2]
    assert ("Ada" in found[2][0], "x" * 2048) == (True, found[2][1])


def test_texts_are_redacted(told: Any) -> None:
    """And those inside of messages."""
    messages = "[\"{'role': 'user', 'content': '***'}\"]"
    assert [("I am ***", "Hello ***"), ("Hm", "a secret"), (messages, "x" * 2048)] == texts(told("hide"))


@pytest.mark.parametrize("before", [2047, 65_535, 65_534, 200_000])
def test_no_part_of_a_secret_is_left_where_a_text_is_cut(stubbed: Recording, monkeypatch: Any, before: int) -> None:
    """The whole text passes the function, in messages, too; then it is cut."""
    monkeypatch.setenv("OTEL_RL_CAPTURE_CONTENT", "true")
    monkeypatch.setenv("OTEL_RL_REDACT", f"{__name__}:hide")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1000000")
    stubbed.start()
    text = "x" * before + "Ada"
    with otel_rl.step(7):
        otel_rl.sample(id="a", prompt=text, response=[{"role": "user", "content": text}, {"Ada": [[text]]}])
    found = "".join(map(str, texts(stubbed.stop())[0]))
    assert len(found) > 2000
    assert not re.search("A|d", found)


@pytest.mark.guarded
def test_an_object_whose_text_is_cut_is_left_out(stubbed: Recording, monkeypatch: Any) -> None:
    """Its end cannot be redacted."""

    class Message:
        def __str__(self) -> str:
            return "x" * 65_535 + "Ada"

    monkeypatch.setenv("OTEL_RL_CAPTURE_CONTENT", "true")
    monkeypatch.setenv("OTEL_RL_REDACT", f"{__name__}:hide")
    stubbed.start()
    with otel_rl.step(7):
        otel_rl.sample(id="a", prompt=Message())
    assert [(None, None)] == texts(stubbed.stop())


@pytest.mark.guarded
@pytest.mark.parametrize(("name", "left_out"), [("fail", 1), ("leave", 3), ("forget", 3), ("absent", 3)])
def test_a_text_that_cannot_be_redacted_is_left_out(told: Any, name: str, left_out: int) -> None:
    """With the other text of the sample; the rest of its record stays, and it is counted."""
    run = told(name)
    found = texts(run)
    assert 3 == len(found)
    assert left_out == found.count((None, None)) == counted(run, v.SELF_CHANGED, "text_not_redacted")


@pytest.mark.guarded
def test_a_function_that_hangs_costs_the_texts_alone(told: Any, monkeypatch: Any, caplog: Any) -> None:
    """Of all that follow; one line says so."""
    monkeypatch.setattr(sample_records, "LIMIT_S", 0.05)
    run = told("hang")
    HELD.set()
    assert [(None, None)] * 3 == texts(run)
    assert 3 == counted(run, v.SELF_CHANGED, "text_not_redacted")
    assert 1 == sum("did not return" in message for message in caplog.messages)


def test_a_slow_function_rests(told: Any, monkeypatch: Any) -> None:
    """Samples have no text meanwhile."""
    monkeypatch.setattr(sample_records, "BURST_S", 0.0)
    run = told("hide")
    assert [(None, None)] * 3 == texts(run)
    assert 3 == counted(run, v.SELF_CHANGED, "text_not_redacted")


@pytest.mark.guarded
def test_what_a_failing_function_says_stays_out_of_the_log(told: Any, caplog: Any) -> None:
    """Its error may repeat the text."""
    told("fail")
    assert "secret" not in caplog.text
    assert "ValueError" in caplog.text


def test_a_derived_text_is_what_it_holds(told: Any) -> None:
    """Not what it says of itself."""
    assert [("***", "***")] * 2 == texts(told("derive"))[:2]


def test_texts_of_exceptions_do_not_pass_the_function(stubbed: Recording, monkeypatch: Any) -> None:
    """So with one they are left out."""
    monkeypatch.setenv("OTEL_RL_CAPTURE_CONTENT", "true")
    monkeypatch.setenv("OTEL_RL_REDACT", f"{__name__}:hide")
    stubbed.start()
    with suppress(ValueError), otel_rl.step(7), otel_rl.stage("reward"):
        raise ValueError("Ada")
    run = stubbed.stop()
    assert not any(b"Ada" in file.read_bytes() for file in run.path.iterdir() if file.is_file())


def test_a_sample_is_as_it_was_at_the_call(stubbed: Recording, monkeypatch: Any) -> None:
    """The program may change what it gave."""
    np = pytest.importorskip("numpy")
    monkeypatch.setenv("OTEL_RL_CAPTURE_CONTENT", "true")
    stubbed.start()
    rewards, parts, messages = np.array([1.0, 2.0]), {"exact": 1.0}, ["first"]
    with otel_rl.step(7):
        for index in range(2):
            otel_rl.sample(id=str(index), reward=rewards[index : index + 1], rewards=parts, prompt=messages)
            parts["exact"] += 1
            messages.append("later")
        rewards -= 10
    found = [one.attributes for one in records(stubbed.stop(), v.SAMPLE_RECORD)]
    assert [1.0, 2.0] == [one[v.SAMPLE_REWARD] for one in found]
    assert [1.0, 2.0] == [one[f"{v.SAMPLE_REWARD}.exact"] for one in found]
    assert "later" not in found[0][v.SAMPLE_PROMPT]


@pytest.mark.guarded
def test_what_is_no_name_of_an_error_is_left_out(stubbed: Recording) -> None:
    """It is a text, and may be content."""
    stubbed.start()
    with otel_rl.step(7):
        otel_rl.sample(id="a", error="Ada's answer cannot be parsed")
        otel_rl.sample(id="b", error="ParseError")
    run = stubbed.stop()
    assert ["_OTHER", "ParseError"] == [one.attributes[v.ERROR_TYPE] for one in records(run, v.SAMPLE_RECORD)]
    assert 1 == counted(run, v.SELF_CHANGED, "sample_value_left_out")


@pytest.mark.guarded
def test_a_sample_outside_of_a_step_is_counted(stubbed: Recording, caplog: Any) -> None:
    """It belongs nowhere."""
    stubbed.start()
    with otel_rl.step(7):
        otel_rl.sample(id="b")
    otel_rl.sample(id="a")
    run = stubbed.stop()
    assert ["b"] == [one.attributes[v.SAMPLE_ID] for one in records(run, v.SAMPLE_RECORD)]
    assert any("outside of a step" in message for message in caplog.messages)
    lost = Loss(what="dropped", signal="logs", reason="sample_outside_step", count=1)
    assert [lost] == build_report(run, WALL_NS).losses
