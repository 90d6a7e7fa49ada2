"""`python -m scripts.boards` writes `collector/grafana/boards` anew; a test compares them."""

from scripts.boards.make import TARGET, files

TARGET.mkdir(exist_ok=True)
for name, text in files().items():
    (TARGET / name).write_text(text, encoding="utf-8")
