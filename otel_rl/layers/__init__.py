"""The four log layers: a line of the loop, the rollout and the update for each step, and records of single samples.

The program's threads only queue what they know: numbers (``metrics/record.py``) and samples (``api.py``). When a step
is over and the numbers of its devices have come, the flusher makes its lines of the numbers whose times fall into it
(``step_lines.py``), and the records of the samples that are kept (``kept_samples.py``, ``sample_records.py``).
"""
