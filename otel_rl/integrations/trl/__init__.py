"""TRL: rollouts, rewards, logprobs and the update of its trainers."""
