"""One use case per file; `wiring.py` alone builds components."""
