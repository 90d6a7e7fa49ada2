"""The sections of the report, each made of what was read."""
