"""Own time, coverage and paths of stages against sums made by hand and by brute force."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.analysis.stages import Comm, StageTimes
from otel_rl.tables.forest import grow
from tests.tables.made import Span, in_order, ints, stage_times, within

ROOT = b"root"
WHOLE = Span(ROOT, b"", "rl.rank 0", 0, 1000)


def stage(
    key: str,
    parent: str,
    begin: int,
    end: int,
    *,
    inside: Comm | None = None,
    hidden: bool = False,
    comm: bool = False,
) -> Span:
    """Make a piece whose label is its key without digits."""
    label = key.rstrip("0123456789")
    return Span(key.encode(), parent.encode(), label, begin, end, is_comm=comm, comm=inside, is_hidden=hidden)


def test_own_time_leaves_out_nested_collectives() -> None:
    """Collectives of a child are no own time of its parent either, and are counted once."""
    spans = [
        WHOLE,
        stage("evaluate", "root", 0, 100, inside=Comm(2, 5)),
        stage("sample", "evaluate", 10, 60, inside=Comm(1, 20)),
        stage("comm", "sample", 20, 40, comm=True),
    ]
    slices = stage_times(spans)
    assert StageTimes((100,), 100, 75, Comm(3, 25), False, False) == slices[("evaluate",)]
    assert StageTimes((50,), 50, 30, Comm(1, 20), False, False) == slices[("evaluate", "sample")]
    assert {("evaluate",), ("evaluate", "sample")} == set(slices)


def test_a_stage_without_a_sum_counts_its_comm_spans() -> None:
    """Where the writer gave no time of collectives, the spans stand for it."""
    spans = [WHOLE, stage("forward", "root", 0, 10), stage("comm", "forward", 2, 5, comm=True)]
    assert StageTimes((10,), 10, 7, Comm(1, 3), False, False) == stage_times(spans)[("forward",)]


def test_a_collective_below_the_container_is_a_row_without_own_time() -> None:
    """It lies in no stage, so it is one itself."""
    spans = [WHOLE, stage("comm", "root", 2, 5, comm=True)]
    assert {("comm",): StageTimes((3,), 3, 0, Comm(1, 3), False, False)} == stage_times(spans)


def test_collectives_under_no_stage_are_those_that_the_container_counted() -> None:
    """Only the longest of them are spans; the container knows of all, and without its word the spans count."""
    spans = [stage("comm1", "root", 2, 5, comm=True), stage("sample", "root", 5, 9, inside=Comm(7, 2))]
    containers = [stage("root", "", 0, 9, inside=Comm(40, 8)), stage("root", "", 0, 9)]
    found = [direct_comm([container, *spans]) for container in containers]
    assert [Comm(40, 8), Comm(1, 3)] == found


def direct_comm(spans: list[Span]) -> Comm:
    """Return the collectives directly in the first span."""
    one = within([spans])
    return Comm(*(int(column[one.roots[0]]) for column in one.table.direct))


def test_hidden_collectives_mark_the_stages_around_them() -> None:
    """Own time of a parent is as uncertain as that of its child."""
    spans = [WHOLE, stage("train", "root", 0, 9), stage("backward", "train", 1, 8, hidden=True)]
    assert [part.is_hidden for part in stage_times(spans).values()] == [True, True]


def test_overlapping_calls_are_busy_once() -> None:
    """Busy and own time are unions, durations belong to the calls."""
    spans = [WHOLE, stage("reward1", "root", 0, 10), stage("reward2", "root", 5, 20)]
    assert StageTimes((10, 15), 20, 20, Comm(0, 0), False, False) == stage_times(spans)[("reward",)]


def test_what_is_of_another_kind_is_found_however_deep_it_lies() -> None:
    """A judge's rollout below a reward function; what is inside of that belongs to it, and so does an evaluation's."""
    spans = [
        WHOLE,
        stage("rl.reward", "root", 0, 100),
        stage("rl.reward judge", "rl.reward", 0, 90),
        stage("mine", "rl.reward judge", 10, 80),
        stage("rl.sample", "mine", 20, 70),
        stage("rl.sync", "rl.sample", 30, 40),
        stage("rl.evaluate", "root", 100, 200),
        stage("rl.log", "rl.evaluate", 100, 190),
        stage("rl.checkpoint", "rl.log", 110, 180),
    ]
    assert {
        ("rl.reward",): 100,
        ("rl.reward", "rl.reward judge"): 90,
        ("rl.reward", "rl.sample"): 50,
        ("rl.evaluate",): 100,
        ("rl.evaluate", "rl.log"): 90,
    } == {path: part.busy_ns for path, part in stage_times(spans).items()}


def test_spans_that_point_at_each_other_end() -> None:
    """A damaged journal may hold a circle: the first span of it has no parent."""
    forest = grow(ints([1, 0]), ints([0, 0]))
    assert ([0, 1], [-1, 0]) == (forest.order.tolist(), forest.parent.tolist())


nested = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=9)


@given(nested)
def test_own_time_takes_every_collective_away_once(shapes: list[tuple[int, int]]) -> None:
    """However stages are nested, each loses the collectives of all stages that have it among their ancestors."""
    parents = [parent if parent < index else None for index, (parent, _) in enumerate(shapes)]
    pieces = [
        Span(bytes([index]), ROOT if parent is None else bytes([parent]), str(index), 0, 1000, comm=Comm(1, comm_ns))
        for index, (parent, (_, comm_ns)) in enumerate(zip(parents, shapes, strict=True))
    ]

    def ancestors(index: int | None) -> list[int]:
        return [] if index is None else [index, *ancestors(parents[index])]

    inside = [sum(shape[1] for other, shape in enumerate(shapes) if i in ancestors(other)) for i in range(len(shapes))]
    found = {path[-1]: part.own_ns for path, part in stage_times([WHOLE, *pieces]).items()}
    shown = [index for index in range(len(shapes)) if len(ancestors(index)) <= 2]
    assert {str(index): 1000 - inside[index] for index in shown} == found


LABELS = ("rl.idle queue", "rl.idle data", "comm", "hidden", "mine")
forests = st.lists(
    st.tuples(st.sampled_from(LABELS), st.integers(0, 24), st.integers(0, 24), st.integers(0, 9)), max_size=8
)


@settings(max_examples=500)
@given(forests)
def test_every_moment_counts_once(shapes: list[tuple[str, int, int, int]]) -> None:
    """For the rank as the first activity that it has, for a stage as own time or not, however stages overlap."""
    keys = ["root" if parent >= index else f"{shapes[parent][0]}{parent}" for index, (*_, parent) in enumerate(shapes)]
    pieces = [
        stage(f"{label}{index}", key, begin, end, hidden=label == "hidden", comm=label == "comm")
        for index, (key, (label, begin, end, _)) in enumerate(zip(keys, shapes, strict=True))
    ]
    container = Span(ROOT, b"", "rl.rank 0", 4, 20)
    at = [{one.label for one in pieces if one.begin_ns <= tick < one.end_ns} for tick in range(4, 20)]
    ranked = [("rl.idle",), ("comm",), ("hidden",), ("mine",)]
    expected = [
        next((place for place, names in enumerate(ranked) if any(one.startswith(names) for one in now)), 4)
        for now in at
    ]
    assert [*map(expected.count, range(5))] == within([[container, *pieces]]).activities()[0].tolist()
    tops_of = {path[0]: part for path, part in stage_times([container, *pieces]).items() if len(path) == 1}
    for label, part in tops_of.items():
        tops = [one for one in pieces if one.parent == ROOT and one.label == label]
        busy = {tick for one in tops for tick in range(max(4, one.begin_ns), min(20, one.end_ns))}
        inside = [child for child in pieces if any(one in around(child, pieces) for one in tops)]
        left_out = {"comm"} if label.startswith("rl.idle") else {"comm", "rl.idle queue"}
        taken = {tick for one in inside if one.label in left_out for tick in range(one.begin_ns, one.end_ns)}
        assert (len(busy), len(busy - taken)) == (part.busy_ns, part.own_ns)


def around(span: Span, spans: list[Span]) -> list[Span]:
    """Return a span with all that are around it."""
    parents = [one for one in spans if one.key == span.parent]
    return [span, *(outer for one in parents for outer in around(one, spans))]


times = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9)), max_size=9)


@given(times)
def test_coverage_counts_every_level_once(spans: list[tuple[int, int, int]]) -> None:
    """Covered time of a container is the union of all spans below it, clipped to it, however they are nested."""
    container = Span(ROOT, b"", "rank", 5, 25)
    pieces = [
        stage(f"s{index}", "root" if parent >= index else f"s{parent}", begin, end)
        for index, (begin, end, parent) in enumerate(spans)
    ]
    expected = {tick for begin, end, _ in spans for tick in range(max(5, begin), min(25, end))}
    assert [len(expected)] == within([[container, *pieces]]).covered_ns().tolist()


def launch(key: str, end: int, device_ns: int | None, inside: Comm | None = None) -> Span:
    """Make a forward that the host only launches."""
    return Span(key.encode(), ROOT, "forward", 0, end, comm=inside, is_host_clock=True, device_ns=device_ns)


def test_a_stage_that_the_device_timed_has_its_times() -> None:
    """All of its calls, or none: a mixture would be neither."""
    both = [launch("a", 3, 40), launch("b", 5, 60)]
    assert {("forward",): StageTimes((40, 60), 100, 100, Comm(0, 0), False, False, True)} == stage_times([WHOLE, *both])
    mixed = [launch("a", 3, 40), launch("b", 5, None)]
    assert {("forward",): StageTimes((3, 5), 5, 5, Comm(0, 0), False, True)} == stage_times([WHOLE, *mixed])


def test_waits_for_collectives_are_a_part_of_the_time_of_the_device() -> None:
    """They run on streams of their own, so own time is not known."""
    spans = [WHOLE, launch("a", 3, 40, Comm(2, 1))]
    assert {("forward",): StageTimes((40,), 40, 40, Comm(2, 1), True, False, True)} == stage_times(spans)


def test_a_stage_whose_host_waits_keeps_the_hosts_time() -> None:
    """A rollout: the host waits for its tokens."""
    spans = [WHOLE, Span(b"a", ROOT, "sample", 0, 50, device_ns=40)]
    assert {("sample",): StageTimes((50,), 50, 50, Comm(0, 0), False, False)} == stage_times(spans)


def test_what_outlives_its_step_counts_inside_of_it() -> None:
    """A rollout of a task, or an upload of another thread: its call stays as long as it was."""
    container = Span(ROOT, b"", "rl.rank 0", 10, 30)
    spans = [container, stage("sample1", "root", 12, 500, inside=Comm(1, 5)), stage("sample2", "root", 28, 90)]
    whole = {("sample",): StageTimes((62, 488), 18, 13, Comm(1, 5), False, False)}
    assert whole == stage_times(spans)
    alone = stage_times([container, stage("upload", "root", 25, 500)])
    assert {("upload",): StageTimes((475,), 5, 5, Comm(0, 0), False, False)} == alone
    assert [18] == within([spans]).covered_ns().tolist()


@given(st.lists(forests, min_size=1, max_size=3))
def test_containers_are_folded_each_by_itself(traces: list[list[tuple[str, int, int, int]]]) -> None:
    """However many at once; ranks share the ids of spans."""
    listed = [
        [
            Span(ROOT, b"", "rl.rank 0", 4, 20),
            *(
                stage(f"{label}{index}", "root" if parent >= index else f"{shapes[parent][0]}{parent}", begin, end)
                for index, (label, begin, end, parent) in enumerate(shapes)
            ),
        ]
        for shapes in traces
    ]
    together = within(listed)
    assert [stage_times(spans) for spans in listed] == [
        {path: in_order(times) for number, path, times in together.stage_times() if number == trace}
        for trace in range(len(listed))
    ]
    assert [within([spans]).activities()[0].tolist() for spans in listed] == together.activities().tolist()
