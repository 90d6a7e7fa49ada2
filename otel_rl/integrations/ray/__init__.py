"""Ray: the processes of one job are one run, and record below the step that they work for."""
