"""`docs/tables.md`: the tables of a run, and ten questions."""

from __future__ import annotations

from typing import Final

from otel_rl.catalogue.markdown import code, section
from otel_rl.catalogue.table_questions import TABLE_QUESTIONS
from otel_rl.query.run_schema import TABLES, SqlTable

HEAD: Final = """\
# Tables

Written by `python -m otel_rl.catalogue` from `otel_rl/query/run_schema.py` and `otel_rl/catalogue/table_questions.py`.

A report answers what its authors thought of. For your own questions a run has tables that SQL can read:

```bash
pip install 'otel-rl[query]'        # DuckDB
otel-rl query RUN "SELECT role, rank, avg(wait_s) FROM steps WHERE is_averaged GROUP BY ALL"
otel-rl query RUN "SELECT * FROM stages" --format parquet --output stages.parquet
otel-rl query                       # the tables and their columns
```

The SQL is that of [DuckDB](https://duckdb.org/docs/stable/sql/introduction). It is one statement that only reads. It
reaches no file and no network; only the file that `--output` names is written. A table is made when a query names it.
On the screen are the first 100 rows, and the first columns if it has no room for all; a single row is shown as a list.
`--format csv` and `--format json` write all. `--memory` limits what the engine uses (4 GB). Ctrl-C ends a query.

In a notebook:

```python
import otel_rl

run = otel_rl.read("otel_rl_runs/my-run")  # without a name: the newest run
run.steps.df()  # pandas, if it is installed; also .pl() and .arrow()
run.query("SELECT stage, sum(total_s) AS s FROM stages GROUP BY stage ORDER BY s DESC").show()
run.spans.filter("status = 'error'").fetchall()
```

`otel_rl.read` writes nothing to the run. `otel-rl query` keeps what it read of a large run for the next report, as
`otel-rl report` does.

- **The numbers of `steps`, `stages`, `waits`, `calls` and `curves` are the report's** ([report.md](report.md)).
- **`spans`, `points`, `requests` and `logs` are what was journaled** ([catalogue.md](catalogue.md)).
- **Attributes and labels are maps of texts.** A number needs a cast: `CAST(attributes['rl.tokens'] AS BIGINT)`.
- **Stages have whole names**: `rl.log.gather`, which the report on the screen shortens to `log.gather`.
  `SELECT DISTINCT stage FROM stages` and `SELECT DISTINCT metric, labels FROM curves` list what a run has.
- **Values of evaluations** have the label `rl.mode`; `WHERE labels['rl.mode'] IS NULL` leaves them out.
- **Times** are in UTC. What ends in `_s` is in seconds.
- **Ranks** are unique within a role; a step is one of an attempt and a loop.

[exports.md](exports.md) has other ways out of a run: Parquet, Perfetto, TensorBoard, JSON. If your Collector sends to
ClickHouse, views have these names and columns there, and the [ten questions](#ten-questions) run word for word
([collector/README.md](../collector/README.md#questions-by-sql-in-clickhouse)). Two things are missing there:

- **`curves`.** The exporter keeps whole seconds of a point's time, which do not tell its step. The log records of
  steps have the same numbers: `rl.log.rollout`, `rl.log.update` and `rl.log.loop` ([logs.md](logs.md)).
- **The workers of a driver** in `steps`, `stages`, `waits` and `calls`. They have no steps of their own, and only
  otel_rl's reader finds out which of their calls belong to a step.
"""


def render() -> str:
    return "\n".join([HEAD, *map(_table, TABLES.values()), _questions()])


def _table(table: SqlTable) -> str:
    rows = ((code(one.name), one.type, code(one.unit) if one.unit else "", one.sentence) for one in table.columns)
    return section(table.name, table.sentence, ("column", "type", "unit", "meaning"), rows)


def _questions() -> str:
    parts = ["## Ten questions\n"]
    for question in TABLE_QUESTIONS:
        parts.append(f"### {question.text}\n\n```sql\n{question.sql}\n```\n\n{question.answer}\n")
    return "\n".join(parts)
