"""SkyRL, by the kit for single controllers."""
