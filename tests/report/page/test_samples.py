"""The samples of a run: which are kept, what stands out, and how the page shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.layers.kept_samples import FinishedSample, StepSamples
from otel_rl.layers.sample_records import Redaction, records_of
from otel_rl.process.state import Trace
from otel_rl.records import Log
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import Course, SampleCourse, SampleRow
from otel_rl.report.data.report import Report
from otel_rl.report.page.document import to_html, trace_link
from otel_rl.report.page.sample_foldouts import LEAST_TEXT, MOST_TEXT
from otel_rl.report.rows.course_parts import sample_logs, sample_rows
from tests.made_runs import BEGIN_NS, MS, Plan, resource, write_run
from tests.report.page.test_document import EVIL, Tags

NOW_NS = BEGIN_NS + 3_600_000_000_000
PLAN = Plan()


def sample(step: int, number: int, **more: object) -> FinishedSample:
    """Make one of the four answers to a prompt."""
    made = FinishedSample(
        id=f"{step}.{number}",
        group=f"{step}.{number // 4}",
        reward=number / 10,
        rewards={"right": number / 5},
        advantage=0.5,
        prompt_tokens=7,
        response_tokens=10 * step + number,
        finish="stop",
        policy_version=step - 1,
        time_ns=BEGIN_NS + 900 * MS,
        span_id=5,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def write_samples(root: Path, steps: dict[int, Sequence[FinishedSample]], plan: Plan = PLAN, rank: int = 0) -> Path:
    """Write a run, and the records of samples of some of its steps as a recorder writes them."""
    run = write_run(root, plan)
    writer = Writer(run, replace(WriterIdentity.current("trainer", rank, "0.1.0"), start_time=1), max_bytes=1 << 30)
    encoder = SpanEncoder(resource(plan, rank), "0.1.0")
    for step, samples in steps.items():
        of_step = StepSamples(256, str(step))
        of_step.add(samples)
        said = {v.LOOP_NAME: "train", v.ITERATION: step}
        found = records_of(of_step, Trace(77 + step, None), said, Redaction(""), 256)  # type: ignore[arg-type]
        for request in encoder.encode_logs([one for one in found if isinstance(one, Log)]):
            writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    writer.close()
    return run


def made(run: Path) -> tuple[Report, Course]:
    report, course = build_with_course(open_run(run), NOW_NS)
    assert report.unmade == []
    return report, course


def eight(step: int) -> list[FinishedSample]:
    return [sample(step, number) for number in range(8)]


def test_samples_of_chosen_steps_are_kept_as_they_were_recorded(tmp_path: Path) -> None:
    """Each attribute; by group, and of the steps with a timeline or the last before them."""
    _, course = made(write_samples(tmp_path, {step: eight(step) for step in (1, 3, 5, 7, 11)}))
    samples = course.samples
    chosen = {one.step for one in course.spans}
    assert [one.step for one in samples.steps] == sorted({max(s for s in (1, 3, 5, 7, 11) if s <= c) for c in chosen})
    last = samples.steps[-1]
    assert (last.step, last.count, last.groups, last.longest, last.trace) == (11, 8, 2, 117, f"{77 + 11:032x}")
    assert last.mean_reward == pytest.approx(0.35)
    assert last.rows[5] == SampleRow(
        role="trainer", rank=0, step=11, group="11.1", id="11.5", reward=0.5, rewards={"right": 1.0}, advantage=0.5,
        prompt_tokens=7, response_tokens=115, environment_tokens=None, turns=None, tool_calls=None, finish="stop",
        error="", policy_version=10, discarded="", kept="", prompt="", response="", span=f"{5:016x}",
    )  # fmt: skip
    assert (samples.count, samples.of_steps, samples.ends, samples.is_part) == (40, 5, {"stop": 40}, False)


def test_what_stands_out_is_of_all_steps(tmp_path: Path) -> None:
    """A NaN is no best reward; a number in which all are alike is none to stand out by."""
    bad = [sample(4, 0, reward=math.nan), sample(4, 1, finish="abort"), sample(4, 2, discarded="unscored", reward=-3.0)]
    _, course = made(write_samples(tmp_path, {2: eight(2), 4: bad}))
    samples = course.samples
    found = {name: (row.step, row.id) for name, row in samples.extremes.items()}
    assert found == {"longest": (4, "4.2"), "best": (2, "2.7"), "worst": (4, "4.2")}
    assert samples.ends == {"stop": 10, "abort": 1} and samples.discarded == {"unscored": 1}


def test_whole_groups_are_kept_of_many_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says how many are left out."""
    monkeypatch.setattr(sample_rows, "MOST_SAMPLES", 12)
    report, course = made(write_samples(tmp_path, {1: eight(1), 12: eight(12)}))
    assert [[row.id for row in step.rows] for step in course.samples.steps] == [
        [f"{step}.{number}" for number in range(4)] for step in (1, 12)
    ]
    text = "".join(Tags(to_html(report, course)).text)
    assert "Step 12: 8 samples, 2 groups, mean reward 0.35, longest 127 tokens; 4 are not in this page" in text
    assert "This page has 8 of them, of 2 steps" in text


def test_of_many_log_records_those_of_chosen_steps_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of each process and step as the limit allows; the page says so."""
    monkeypatch.setattr(sample_logs, "MOST_BYTES", 0)
    monkeypatch.setattr(sample_logs, "MOST_READ", 0)
    last_ns = max(one.start_ns for one in open_run(write_run(tmp_path / "a", PLAN)).spans() if one.name == v.LOOP)
    many = [sample(12, number, time_ns=last_ns + MS) for number in range(100)]
    early = [sample(12, number, time_ns=BEGIN_NS) for number in range(100, 200)]
    report, course = made(write_samples(tmp_path, {12: many, 11: early}))
    assert course.samples.is_part and [step.count for step in course.samples.steps] == [sample_logs.FEWEST]
    assert "The run has more records than were read" in "".join(Tags(to_html(report, course)).text)


def test_a_run_without_records_has_no_panel(tmp_path: Path) -> None:
    report, course = made(write_run(tmp_path, PLAN))
    assert not course.samples.count
    assert "panel-samples" not in to_html(report, course)


def test_samples_of_an_evaluation_are_not_those_of_the_step(tmp_path: Path) -> None:
    """The panel is about what is trained."""
    _, course = made(write_samples(tmp_path, {12: [*eight(12), sample(12, 8, is_evaluation=True)]}))
    assert 8 == course.samples.count


def test_the_panel_has_every_number_of_a_sample(tmp_path: Path) -> None:
    """The title says which is the longest; columns of which nothing is known are not there."""
    report, course = made(
        write_samples(tmp_path, {12: [sample(12, 3, turns=4, discarded="truncated", finish="length")]})
    )
    page = to_html(report, course)
    table = re.sub(r"<[^>]+>", " ", page[page.index('id="samples-12"') :].partition("</details>")[0]).split()
    head = "group sample reward right advantage prompt tokens response tokens turns weights version end not trained on"
    row = "12.0 12.3 0.3 0.6 0.5 7 123 4 11 cut truncated rank 0"
    assert " ".join(table).endswith(f"{head} rank span {row} {5:016x}")
    assert "Not trained on: 1 truncated." in page


def test_texts_are_text(tmp_path: Path) -> None:
    """Folded, with their lines; a prompt of all answers of a group stands there once; whatever was generated."""
    answers = [
        sample(12, number, prompt=f"How\n  many? {EVIL}", response=f"{EVIL}\n\x1b[31m{number}") for number in (0, 1)
    ]
    report, course = made(write_samples(tmp_path, {12: answers}))
    page = to_html(report, course)
    assert page[page.index('id="samples-12"') :].count("<summary>prompt</summary>") == 1
    assert "<summary>answer of sample 12.1, reward 0.1</summary><pre>&lt;/script&gt;" in page
    assert "<pre>How\n  many? &lt;/script&gt;" in page
    assert EVIL not in page.replace("\\u003c", "<").partition("<pre>")[2].partition("</section>")[0]
    assert "\x1b" not in page
    assert len(Tags(page).scripts) == 3


def test_texts_of_what_stands_out_are_there(tmp_path: Path) -> None:
    """Also of steps without a timeline; a sample that stands out twice is there once."""
    run = write_samples(tmp_path, {4: [sample(4, 0, response="the worst"), sample(4, 7, prompt="?", response="best")]})
    report, course = made(run)
    page = to_html(report, replace(course, samples=replace(course.samples, steps=[])))
    text = re.sub(r"<[^>]+>", "|", page[page.index("Texts of what stands out") :].partition("</section>")[0])
    assert [one for one in text.split("|") if one.strip()] == [
        "Texts of what stands out", "longest, best: sample 4.7 of step 4", "prompt", "?", "answer", "best",
        "worst: sample 4.0 of step 4", "answer", "the worst",
    ]  # fmt: skip


def test_long_texts_are_cut(tmp_path: Path) -> None:
    """All of them together have a limit; what was cut is counted."""
    _, course = made(write_samples(tmp_path, {12: eight(12)}))
    step = course.samples.steps[0]
    rows = [replace(row, response="\u4e16" * 1_000_000) for row in step.rows] * 1_000
    report, _ = made(write_run(tmp_path / "b", PLAN))
    page = to_html(report, Course(samples=SampleCourse(steps=[replace(step, rows=rows)], count=8, of_steps=1)))
    assert page.count("\u4e16") == LEAST_TEXT * len(rows)
    few = to_html(report, Course(samples=SampleCourse(steps=[replace(step, rows=rows[:60])], count=8, of_steps=1)))
    assert few.count("\u4e16") == MOST_TEXT
    assert "(990,000 further characters)" in few


@pytest.mark.parametrize(
    ("said", "link"),
    [
        ("", ""),
        ("http://127.0.0.1:16686", "http://127.0.0.1:16686/trace/abc"),
        ("https://jaeger.example/ui/", "https://jaeger.example/ui/trace/abc"),
        ("https://grafana.example/explore?t={trace_id}&x=1", "https://grafana.example/explore?t=abc&x=1"),
    ],
)
def test_a_trace_has_a_link_where_traces_can_be_seen(tmp_path: Path, said: str, link: str) -> None:
    """It opens elsewhere, and tells nobody where it was clicked."""
    assert trace_link(said, "abc") == link
    report, course = made(write_samples(tmp_path, {12: eight(12)}))
    course = replace(course, samples=replace(course.samples, steps=[replace(course.samples.steps[0], trace="abc")]))
    found = [
        of for tag, of in Tags(to_html(report, course, said)).tags if tag == "a" and of.get("href") == (link or "#")
    ]
    assert all((of["target"], of["rel"]) == ("_blank", "noopener noreferrer") for of in found)
    assert [one for one in found if "hidden" not in one] == ([] if not link else found)
    assert found
