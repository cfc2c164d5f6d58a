"""Sandboxes as server processes on the loopback of this machine."""
