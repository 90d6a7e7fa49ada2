"""A program in the shape of AReaL 1.0.4 and 2.0.0: names, signatures, who calls whom, on which thread, what is timed.

Controller and workers are one process, and JSON stands for HTTP. ``tests/areal/test_signatures.py`` compares the
signatures with those of AReaL.
"""
