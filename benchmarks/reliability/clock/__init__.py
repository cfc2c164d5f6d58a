"""A folder for PYTHONPATH whose `sitecustomize` gives a process a clock that can be stepped."""
