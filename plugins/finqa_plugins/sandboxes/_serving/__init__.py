"""Servers on addresses of this machine, for the providers that start them here."""
