"""JSON schemas of tools. A library for environments and engines; it registers nothing."""
