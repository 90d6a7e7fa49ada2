"""The sections of the report: what each shows of its rows."""
