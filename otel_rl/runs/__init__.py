"""What readers of journals share."""
