"""observe() on an NVIDIA GPU: nothing waits for it, and what comes is what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from tests.analysis.test_flops import QWEN_0_5B

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def test_a_batch_on_a_gpu_is_shown_without_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch would raise at any synchronisation; the tokens are those before they were changed."""
    monkeypatch.setenv("OTEL_RL_RUN_ID", "gpu")
    monkeypatch.setenv("OTEL_RL_PEAK_FLOPS", "1e15")
    otel_rl.instrument(["torch"])
    ids = torch.arange(1, 65, device="cuda").reshape(4, 16)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    logprobs = torch.full((4, 16), -1.0, device="cuda", dtype=torch.bfloat16)
    expected = int((ids * mask).sum())
    otel_rl.observe(model=QWEN_0_5B)
    # the first time, pinned memory is made, which may wait
    for number in (1, 2):
        torch.cuda.set_sync_debug_mode("error" if number == 2 else "default")
        try:
            with otel_rl.step(number), otel_rl.stage("train.forward"):
                batch = {"completion_ids": ids, "completion_mask": mask, "logprobs": logprobs}
                otel_rl.observe(batch=batch)
                if number == 2:
                    ids.add_(1)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    otel_rl.uninstrument()
    run = open_run(tmp_path / "runs" / "gpu")
    rows = [row.attributes[v.LEDGER_TOKENS] for row in run.logs(v.LEDGER)]
    assert [expected, expected] == [row[0] for row in rows]  # type: ignore[index]
    assert {"update", "step"} == {point.attributes[v.FLOPS_SCOPE] for point in run.points(v.MFU)}
