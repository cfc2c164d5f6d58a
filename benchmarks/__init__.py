"""What is measured, against what, and how to run it again; results in RESULTS.md."""
