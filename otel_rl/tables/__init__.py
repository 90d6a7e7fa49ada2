"""A run as tables of arrays: what readers fold, instead of one span after the other.

The spans of a writer are a forest (``forest``): each knows its parent, so everything inside a span is a range once the
spans are in preorder. Times are then sums and unions over ranges, for all steps at once (``stages``, ``calls``). Ranks
are compared by their calls (``peers``, ``waits``).
"""
