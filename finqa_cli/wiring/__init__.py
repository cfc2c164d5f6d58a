"""Construction of components and policies from settings and plugins, and placement on the machine or cluster."""
