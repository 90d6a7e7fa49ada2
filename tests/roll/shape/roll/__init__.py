"""A program of the shape of ROLL 0.3.0: its modules, classes and signatures, as far as otel_rl hooks them.

ROLL itself is in no package index. Bodies are our own and small. They do what matters to who watches: who calls whom in
which process, task and thread, what is timed, and what a signature says. ``tests/roll/test_signatures.py`` compares the
signatures with those of ROLL.
"""
