"""Replacing functions of other packages, exactly undone, and recording around their calls."""
