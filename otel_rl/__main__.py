"""``python -m otel_rl`` is ``otel-rl``."""

from otel_rl.cli import main

if __name__ == "__main__":
    main()
