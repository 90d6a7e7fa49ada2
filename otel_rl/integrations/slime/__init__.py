"""Record slime, and miles, which has its shape, by the kit for single controllers."""
