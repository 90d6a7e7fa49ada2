"""Actions of a run: best checkpoints and early stops, decided in the training process, on all ranks alike."""
