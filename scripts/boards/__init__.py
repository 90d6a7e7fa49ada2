"""The Grafana boards of `collector/grafana/boards`: rows of panels as data, and the function that makes JSON of them.

`python -m scripts.boards` writes the files anew. It needs grafana-foundation-sdk, which users do not.
"""
