"""OpenRLHF, by the kit for single controllers."""
