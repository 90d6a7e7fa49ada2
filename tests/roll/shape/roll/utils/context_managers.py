"""What brings a model onto its device and off again, with a timer around each part."""

from __future__ import annotations

from contextlib import contextmanager

from codetiming import Timer


@contextmanager
def state_offload_manger(strategy, metrics, metric_infix, is_offload_states=True, load_kwargs={}):  # noqa: B006
    with Timer(name=f"{metric_infix}_total", logger=None) as timer:
        with Timer(name=f"{metric_infix}_onload", logger=None):
            strategy.load_states(**load_kwargs)
        with Timer(name=f"{metric_infix}_execute", logger=None):
            yield
        with Timer(name=f"{metric_infix}_offload", logger=None):
            if is_offload_states:
                strategy.offload_states()
    metrics[f"time/{metric_infix}/total"] = timer.last
