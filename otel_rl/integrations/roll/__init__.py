"""ROLL: one trace a step across its driver, workers, schedulers, routers and environments."""
