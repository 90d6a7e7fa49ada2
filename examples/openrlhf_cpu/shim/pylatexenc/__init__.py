"""Names only: no answer is graded by its LaTeX."""

latex2text = None
