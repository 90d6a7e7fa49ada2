"""From the spans of a run to what a report keeps of them: ``writer`` reads, ``traces`` and ``steps`` fold."""
