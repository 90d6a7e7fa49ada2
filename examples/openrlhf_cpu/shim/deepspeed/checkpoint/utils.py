"""Names only."""


def clone_tensors_for_torch_save(item, device="cpu"):
    return item
