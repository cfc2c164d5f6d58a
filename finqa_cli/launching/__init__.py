"""Recipes that start a training run on the machines of a cluster; nothing is started here."""
