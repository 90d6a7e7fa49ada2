"""The policy or the reference of a rank."""

from __future__ import annotations

from typing import Any

import torch


class HFModelWrapper(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)
        self.sequence_parallel_size, self.remove_microbatch_padding = 1, False

    def forward(
        self,
        sequences: Any,
        num_actions: int,
        attention_mask: Any = None,
        temperature: float = 1.0,
        return_output: bool = False,
        compute_entropy: bool = False,
        entropy_requires_grad: bool = True,
        pixel_values: Any = None,
        image_grid_thw: Any = None,
        mm_token_type_ids: Any = None,
        sample_support: Any = None,
        loss_mask: Any = None,
        enable_sample_support_replay: bool = False,
    ):
        logprobs = self.model(sequences[:, -num_actions:, None].float())[..., 0]
        return (logprobs, {}) if return_output else logprobs
