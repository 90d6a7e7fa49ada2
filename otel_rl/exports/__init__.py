"""A run in the formats of other tools, beside OTLP/JSON.

Each file is one format: ``log_lines.py`` JSON lines, ``perfetto_trace.py`` a trace for Perfetto with the ``arrows.py``
of its rollouts, ``tensorboard_events.py`` event files. They read the journal as a stream and write as they read.
"""
