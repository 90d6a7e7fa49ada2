"""Names of vLLM."""

from types import SimpleNamespace

NAMES = (
    "kv_cache_usage_perc",
    "num_requests_waiting",
    "num_preemptions",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)


def get_metrics_snapshot():
    return [SimpleNamespace(name=f"vllm:{name}", value=0) for name in NAMES]
