"""Judges code that a policy wrote: values come out of a sandbox, verdicts are made outside of it.

A library for environments; it registers nothing.
"""
