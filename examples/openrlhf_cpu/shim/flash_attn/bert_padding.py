"""Names only: samples are not packed."""

index_first_axis = pad_input = rearrange = unpad_input = None
