"""The journal: append-only files of framed OTLP requests, written by one process each and read by everything else.

``frame`` is the file format, ``encode`` turns records into OTLP requests, ``write`` appends them, ``read`` reads a run.
"""
