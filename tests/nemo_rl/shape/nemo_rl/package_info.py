"""The version."""

MAJOR = 0
MINOR = 7
PATCH = 0
