"""Requests of OTLP as arrays, and what is kept as a message until somebody asks for it.

Readers get a journal's spans and points from here a batch of frames at a time: a row for each, and the attributes of
spans as columns with a cell for each span that has one. C does it (``_decode.c``) at the cost of protobuf's bare parse;
``fallback`` does the same in Python where there is no compiler, and for a batch with a request that the C does not
understand, so that protobuf alone says what is damage.
"""
