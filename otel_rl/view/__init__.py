"""`otel-rl view`: the page of a run while it grows, and a list of runs, in a browser.

A small HTTP server (``server``) shows pages of ``report.page``. Each run that somebody looks at is read by a process of
its own (``run_reader``): a damaged run or one without end costs the server nothing, and what a page takes of a core is
known. The process sends the parts of a page. The server keeps them as pieces with versions (``pieces``), and the
browser asks every half second for those that changed (``live.js``), so a browser that slept for an hour goes on.
What is open now comes from the status pages of the run (``now``), without reading the run.
"""
