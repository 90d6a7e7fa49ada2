"""The report as data; its JSON schema is generated from these classes."""
