"""Names only: there is no ring attention."""

all_gather = None
