"""`otel-rl compare`: what two runs have in different amounts, by the rows of their reports.

``numbers`` makes the numbers of one run, each with a value for each step. ``comparing`` compares those that both runs
have by ``compare/bootstrap.py``. ``conditions`` judges what a user does not accept. ``compare_blocks`` and
``both_runs`` show it.
"""
