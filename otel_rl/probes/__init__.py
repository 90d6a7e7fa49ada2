"""Read one thing about the process or the machine."""
