"""Commands about several machines."""
