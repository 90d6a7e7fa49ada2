"""A program in the shape of SkyRL 0.4.0: names, signatures, who calls whom, in which task and thread, what is timed.

It trains a tiny network on the CPU, in one process without Ray. ``tests/skyrl/test_signatures.py`` compares the
signatures with those of SkyRL.
"""
