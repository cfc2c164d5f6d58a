"""Where engine and learner run: one plan from the machine, the model and the settings."""
