"""Sandboxes as containers of this machine, by docker or podman."""
