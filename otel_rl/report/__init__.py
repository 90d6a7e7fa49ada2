"""What a run's journals say: one report, for the terminal and as JSON; and the export of the journals themselves."""
