"""Rules that judge a run: where its time goes, whether it learns, whether it is healthy."""
