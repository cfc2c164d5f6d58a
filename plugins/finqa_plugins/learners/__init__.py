"""Learners: components that own and train the weights of a policy."""
