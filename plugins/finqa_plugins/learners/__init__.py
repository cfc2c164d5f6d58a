"""Learners: the owners of trainable weights."""
