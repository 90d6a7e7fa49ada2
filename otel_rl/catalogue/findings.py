"""`docs/findings.md`: the rules of the three findings, as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from otel_rl.catalogue.markdown import code, section
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.findings.rule import Rule
from otel_rl.report.findings.timing import TIME

HEAD: Final = """\
# Findings

Written by `python -m otel_rl.catalogue` from the rules in `otel_rl/report/findings/`.

A report begins with three findings: **TIME**, **LEARN** and **HEALTH**. Each is made by the rules of its table, alarms
before warnings before notes. An alarm asks you to act now, a warning to look at something. A note says that nothing is
wrong. While LEARN or HEALTH has an alarm, TIME gives no advice: slow steps are then often a symptom.

Rules of LEARN mostly compare a run with its own past; TIME and HEALTH have fixed limits. LEARN judges the last training
loop of a run.

- **Stays, to the end**: in nearly all steps (most rules: 90 %) from some step on, and in the last three.
- **First twentieth, last fifth**: at least three steps each. If these differ by no more than noise, the rule compares
  the first and the last third.
- **At least 30 steps**: a shorter run is not judged by this rule.
- **Silenced by**: the rule says nothing if one of these rules of its table holds, because that is the cause.
- **Only if nothing else**: the rule speaks only if its table has no alarm and no warning.

## While a run goes on

The sidecar judges a run every 30 s by the rules of its report, if something is new. A finding begins when its rule
holds twice in a row, and is over when it does not hold twice. Alarms and warnings are told once when they begin and
once when they are over. A [stall](stalls.md) is a finding, too: its rule is `stalled`, its severity `alarm`, and it is
found within seconds.

| where | what |
|---|---|
| terminal of `otel-rl run` | the sentence with its advice, on standard error |
| `otel-rl watch RUN --until alarm` | the same, and an exit code for scripts |
| `otel-rl report`, also with `--live` | the finding, with the time and the step since when it is told |
| `OTEL_RL_ON_FINDING` | your command or server gets JSON, below |
| `otel_rl.on_finding(f)` | a function in the training process is called, below |
| `sidecar.log` in the run's directory | the sentence with its advice, and the time |
| log record `rl.finding` | attributes `rl.finding.*` ([catalogue](catalogue.md)); in the trace of the last step that was judged |
| span event `rl.finding` | on `rl.rank 0`, or the driver, of the step that goes on when it is told |
| metric `rl.finding.active` | 1 while it holds, by rule, kind, severity and sentence; it needs an [endpoint](shipping.md) |
| alert `OtelRlFinding` | one for each run and finding ([rules](shipping.md#rules-and-alerts-in-prometheus)) |

The span of a judged step is written already, and takes no event any more. So its trace has the log record, and the
event is in a later step.

Where nodes share the directory of the run, the sidecar on the node of rank 0, or of the driver, judges. A sidecar that
follows another reads in `RUN/messages` what was told, and tells nothing twice. A stall that ended in between is over
after a minute.

### Your own program or server

| variable | meaning |
|---|---|
| `OTEL_RL_ON_FINDING` | a command, or an `https://` address; `http://` only on this machine |
| `OTEL_RL_ON_FINDING_FROM` | the least severity: `alarm` (default) or `warning`; stalls are alarms |
| `OTEL_RL_ON_FINDING_SECRET` | base64, such as `openssl rand -base64 32` prints: posts are signed |
| `OTEL_RL_ON_FINDING_FORMAT` | `json` (default), or `slack` for an incoming webhook of Slack |
| `OTEL_RL_LINK` | an address for people, as `link` in the JSON; `{run}`, `{step}`, `{trace}` and `{rule}` are filled in. Without it: the run's directory |

The sidecar has the environment of the process that starts it: set these variables before training. If you run the
sidecar in a container of its own, set them there. This is the JSON, wrapped:

```json
{"event": "rl.finding", "rule": "learning_rate_zero", "kind": "learn", "severity": "alarm", "state": "begun",
 "sentence": "The learning rate is 0 in all 60 steps.", "advice": "Set a learning rate; look at its schedule and warm-up.",
 "evidence": {"steps": 60}, "run": "20261126-170700-0094eb", "attempt": "0094eb4885cb0ef3", "step": 59,
 "id": "learning_rate_zero-18eac6a2f0b1c2d3", "time_ns": 1795712831710802429, "trace_id": "5f1e...", "span_id": "9a0c...",
 "link": "file:///data/otel_rl_runs/20261126-170700-0094eb"}
```

At its end the same `id` comes with `"state": "over"`, without advice and evidence.

- **A command** runs without a shell, with the JSON on its standard input. Its output is thrown away. After 60 s it is
  killed with what it started.
- **An address** gets a POST. A server that sends nothing for 10 s has failed, and after 60 s it is given up. It is tried
  three times if no answer comes, or one of 408, 429 and 5xx. A redirect is a refusal: nobody else gets the message. What
  the server answers is not read.
- **Signatures** follow [Standard Webhooks](https://www.standardwebhooks.com): the headers `webhook-id`,
  `webhook-timestamp` and `webhook-signature`. Each try has the same id, so that a receiver knows a message that comes
  twice.
- **Limits**: one message after the other, at most 20 in 10 minutes, and at most 100 that wait. Others are dropped.
- **Misses** are in `sidecar.log`, which never has more of an address than its host, and in `rl.finding.calls` by outcome.
  Training never waits for the hook.

On a Ray cluster that ran before, neither an address nor the secret is handed to the job's processes: set them on the
nodes.

### A function in the training process

```python
import otel_rl

@otel_rl.on_finding
def tell(f):
    if f.severity == "alarm" and f.state == "begun":
        print(f.rule, f.sentence, f.advice)
```

It is called on a thread of otel_rl, within a second after the sidecar has told the finding. `f` has the fields of the JSON.
Every rank that calls `on_finding` gets every finding of its attempt, also those that began before. An error of the
function is logged once, and counted in `otel_rl.errors`. One that does not return holds up later findings, never the
training. `uninstrument()` forgets it.

### Scripts

`otel-rl watch RUN --until alarm` prints what begins and ends, and returns as soon as an alarm goes on, or when the
processes of the run are gone for 10 s. Then it judges the whole run as its report does.

| exit code | meaning |
|---|---|
| 0 | the run has ended without such a finding |
| 4 | a warning, with `--until warning` |
| 5 | an alarm |
| 3 | no such run began within `--start` seconds (60) |
| 130 | interrupted by Ctrl-C |

## Change a rule

Write a file `otel_rl.toml` into the folder of the runs (`otel_rl_runs` by default), or name another one by
`OTEL_RL_RULES`. Reports of all runs in that folder read it. It needs Python 3.11 or newer.

```toml
[rules.low_gpu_use]
enabled = false              # switched off

[rules.engine_full]
limit = 0.2                  # a bound of the table below: here a share of the requests
advice = "Ask the platform team for larger engines."

[kl]                         # the range that a report shows beside the KL to the reference, nat
stalled = 0.001
healthy_from = 0.005
healthy_to = 0.1
aggressive = 0.3
```

- A rule that is switched off is not shown, and a table without other findings says that nothing is wrong. What it would
  silence stays silent.
- `holds if` names the defaults of bounds, also where yours are others. Shares are 0 to 1, times are seconds.
- A name that nothing has is ignored, and the nearest right one is named. A file that cannot be read changes nothing.
  Both stand in the report and in `otel-rl doctor`, which also lists what is changed.
- `rules` of `otel-rl report --json` has the settings that made its findings.
- The usual range of the KL is 0.01 to 0.05 nat; below 0.005 a policy hardly moves, above 0.1 it moves too fast. No rule
  uses these defaults.
"""
TABLES: Final[Sequence[tuple[str, Sequence[Rule[Any]]]]] = (("TIME", TIME), ("LEARN", LEARN), ("HEALTH", HEALTH))


VALUE: Final = re.compile(r"\{(\w+)[^}]*\}")
"""A value of a run, which stands in an advice by its name here."""
COLUMNS: Final = ("rule", "severity", "holds if", "looks at", "advice", "silenced by", "bounds")


def render() -> str:
    return "\n".join([HEAD, *(section(title, "", COLUMNS, map(_row, rules)) for title, rules in TABLES)])


def _row(rule: Rule[Any]) -> Sequence[str]:
    silent = "only if nothing else" if rule.is_fallback else ", ".join(map(code, rule.silenced_by))
    advice = VALUE.sub(r"the \1", rule.advice)
    bounds = ", ".join(code(f"{name} = {value:g}") for name, value in rule.bounds.items())
    return code(rule.name), rule.severity, rule.condition, rule.window, advice, silent, bounds
