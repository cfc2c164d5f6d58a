"""`finqa view`: the pages of `finqa report` served on loopback, live while a run continues, with a list of all runs."""
