"""The tables of a run for questions of one's own, by SQL.

``run_schema.py`` says what the tables are. ``step_tables.py`` makes those about steps from what a report reads, so that
their numbers are the report's; ``span_tables.py`` and ``record_tables.py`` make the others from the journal. Each is
made as arrays when a query names it; ``engine.py`` shows them to DuckDB, which only this room knows.
"""
