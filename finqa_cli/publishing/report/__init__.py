"""`finqa report`: one self-contained HTML page of a run, or of two beside each other."""
