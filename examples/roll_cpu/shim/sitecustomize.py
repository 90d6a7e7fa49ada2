"""Start roll_cpu in every Python process that has this folder on PYTHONPATH (the driver, Ray's workers)."""

import roll_cpu

roll_cpu.install()
