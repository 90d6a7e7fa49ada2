"""Run a pipeline of ROLL with a configuration of this folder, as ROLL's examples/start_*_pipeline.py do.

Usage: start.py rlvr|agentic [CONFIG NAME]. One thing is added: a tracker that writes what ROLL logs to metrics.jsonl.
"""

import json
import os
import sys

from dacite import from_dict
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from roll.distributed.scheduler.initialize import init
from roll.utils.tracking import BaseTracker, tracker_registry


class JsonlTracker(BaseTracker):
    def __init__(self, config, **kwargs):
        self.path = os.path.abspath(os.environ.get("ROLL_CPU_METRICS", "metrics.jsonl"))
        open(self.path, "w").close()

    def log(self, values, step, **kwargs):
        row = {"step": step, **{name: float(value) for name, value in values.items()}}
        with open(self.path, "a") as file:
            print(json.dumps(row), file=file)


tracker_registry["roll_cpu_jsonl"] = JsonlTracker


def main():
    kind, *rest = sys.argv[1:]
    name = rest[0] if rest else kind
    with initialize_config_dir(
        config_dir=os.path.dirname(os.path.abspath(__file__)), job_name="app", version_base=None
    ):
        config = OmegaConf.to_container(compose(config_name=name), resolve=True)
    if kind == "rlvr":
        from roll.pipeline.rlvr.rlvr_config import RLVRConfig as config_class
        from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline as pipeline_class
    else:
        from roll.pipeline.agentic.agentic_config import AgenticConfig as config_class
        from roll.pipeline.agentic.agentic_pipeline import AgenticPipeline as pipeline_class
    pipeline_config = from_dict(data_class=config_class, data=config)
    init()
    pipeline_class(pipeline_config=pipeline_config).run()


if __name__ == "__main__":
    main()
