"""Completion of the command line in bash, zsh and fish, from an index that needs no other module of the product."""
