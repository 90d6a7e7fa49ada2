"""What the flusher makes of finished requests: histograms of all, spans of those that matter, numbers of a rollout."""
