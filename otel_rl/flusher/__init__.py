"""The flusher's thread: it takes what hot threads have queued, completes and counts it, and journals it."""
