"""A generated family of small functions on lists, for environments in which a policy writes code.

A library for environments; it registers nothing.
"""
