"""Servers on this machine, for the providers that start sandboxes here."""
