"""A baseline that calls tools at random."""
