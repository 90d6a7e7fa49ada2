"""What ``observe`` and the integrations show of a model and its batches: FLOPs, MFU and the correctness ledger."""
