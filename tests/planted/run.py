"""Record planted problems and clean trainings, and print what their reports find.

From the root of the repository::

    python -m tests.planted.run                   all problems with seed 0, and the clean trainings
    python -m tests.planted.run leak clean --seeds 0 1 2
    python -m tests.planted.run --judge           build the reports anew, train nothing
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.planted.cases import Case, Judged, cases, judge, record, rows
from tests.planted.problems import BY_NAME

HEAD = ["run", "kind", "", "first sentence", "also raised"]


def main() -> int:
    """Do what the command line says; return 1 if a report is wrong."""
    options = parse()
    asked = [case for case in cases(options.names, options.seeds) if not options.judge or is_recorded(case, options)]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda case: train(case, options), [] if options.judge else asked))
    judged = [judged_or_failed(case, options.dir) for case in asked]
    print(table(judged))
    return int(not all(one.is_right for one in judged))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.run", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"clean, {', '.join(BY_NAME)}; without it: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of the problems (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default: 1)")
    parser.add_argument("--dir", type=Path, default=Path("otel_rl_runs"), help="where to keep the runs")
    parser.add_argument("--judge", action="store_true", help="train nothing, judge what is there")
    return parser.parse_args()


def is_recorded(case: Case, options: argparse.Namespace) -> bool:
    return (options.dir / case.run_id).is_dir()


def train(case: Case, options: argparse.Namespace) -> None:
    """Record a training that is not there yet."""
    if is_recorded(case, options):
        return
    print(f"training {case.run_id}", flush=True)
    record(case, options.dir)


def judged_or_failed(case: Case, root: Path) -> Judged:
    """Judge a case; what has no report is wrong."""
    try:
        return judge(case, root)
    except Exception as error:  # noqa: BLE001 one without a report shall not hide the others
        return Judged(case, [], repr(error))


def table(judged: list[Judged]) -> str:
    """Write what was found as Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *rows(judged)]
    wrong = [one.case.run_id for one in judged if not one.is_right]
    shown = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(
        [*shown, "", f"{len(judged) - len(wrong)} of {len(judged)} right. Wrong: {', '.join(wrong) or '-'}"]
    )


if __name__ == "__main__":
    raise SystemExit(main())
