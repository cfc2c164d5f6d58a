"""`finqa report`: one self-contained HTML page of one run, or of two runs in comparison."""
