"""AReaL, by the kit for single controllers."""
