"""`finqa view`: the pages of `finqa report` served on loopback, live while a run goes on, with a list of all runs."""
