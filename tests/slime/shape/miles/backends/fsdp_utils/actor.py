"""One rank that FSDP shards."""

from typing import Any


class FSDPTrainRayActor:
    def init(
        self,
        args: Any,
        role: Any,
        *,
        with_ref: Any = False,
        with_opd_teacher: Any = False,
        recv_ckpt_src_rank: Any = None,
        indep_dp_info: Any,
    ) -> Any:
        pass
