"""A user's code, checked by mypy in strict mode: every public name with the types that it promises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import opentelemetry.trace

import otel_rl


def train(prompts: list[str]) -> float:
    """Use the package as its documentation shows it."""
    try:
        otel_rl.instrument()
        otel_rl.instrument(["trl", "torch"])
        otel_rl.instrument(integrations=("auto",))
    except otel_rl.NotPossibleError as error:
        print(error)
    except otel_rl.ConfigurationError as error:
        print(error.args)
    for number in range(3):
        with otel_rl.step(number) as step:
            if step is not None:
                step.set_attribute("note", "x")
            with otel_rl.stage("reward", batch_size=64, nested=[1, 2]) as span:
                current: opentelemetry.trace.Span = span
                span.set_attribute("rl.tokens", 4096)
                span.add_event("half", {"n": 1})
                current.set_status(opentelemetry.trace.StatusCode.OK)
                otel_rl.record("my.metric", 0.3)
                otel_rl.observe(model={"model_type": "qwen2"}, batch={"lengths": [3, 4]})
                otel_rl.request("mine", submitted=1.0, ended=2.5, clock="perf_counter", output_tokens=12, finish="stop")
                otel_rl.request("mine", submitted=None, ended=2.5, error=ValueError("x"), parent=span)
                otel_rl.sample(id="a", reward=0.5, rewards={"digits": 0.5}, finish="stop", error=ValueError)
            with otel_rl.trajectory(id="7.3", group="7", mode="eval"), otel_rl.turn(number=0) as answer:
                answer.set_attribute("rl.tokens.response", 3)
            with otel_rl.tool("search", call_id="c"):
                pass
    otel_rl.on_finding(lambda finding: print(finding.sentence, finding.severity))
    carrier = otel_rl.Carrier.current() or otel_rl.Carrier.from_headers({"traceparent": ""})
    if carrier is not None:
        headers: dict[str, str] = carrier.to_headers()
        with carrier.use(), otel_rl.stage("reward", headers=len(headers)):
            pass
    done: bool = otel_rl.flush(timeout_s=2.0)
    otel_rl.uninstrument()
    rows = otel_rl.read("run").query("SELECT avg(duration_s) FROM steps").fetchall()
    print(rows, otel_rl.read().steps.columns)
    return float(done)


@otel_rl.stage("reward")
def score(text: str, *, scale: float = 1.0) -> float:
    """Keep its signature under the decorator."""
    return len(text) * scale


@otel_rl.stage("reward", batch_size=1)
async def score_later(text: str) -> float:
    """Stay a coroutine function under the decorator."""
    return score(text, scale=2.0)


plain: Callable[..., float] = score
later: Callable[[str], Awaitable[float]] = score_later
version: str = otel_rl.__version__
