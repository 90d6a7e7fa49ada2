"""The sentence that a report begins with."""
