"""A training loop that reads from a DataLoader with two workers, each of which records a stage for every item."""

from __future__ import annotations

import sys

import otel_rl

otel_rl.instrument()


class Items:
    """Eight numbers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> int:
        otel_rl.instrument()
        with otel_rl.stage("item", number=number):
            return number


def main() -> None:
    """Take every batch in a step."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    batches = iter(DataLoader(Items(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1]))
    for number in range(4):
        with otel_rl.step(number):
            assert len(next(batches)) == 2


if __name__ == "__main__":
    main()
