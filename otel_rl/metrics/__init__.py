"""Numbers: what programs record, and the fold that makes metric points of them."""
