"""`finqa view`: serves the pages of `finqa report` on 127.0.0.1, live while runs continue, with a list of all runs."""
