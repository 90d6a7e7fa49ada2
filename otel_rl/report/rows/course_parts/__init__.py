"""What a course has beside the times of its steps: samples, arrows, and gauges of rollouts."""
