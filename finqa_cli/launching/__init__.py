"""Recipes that start a training on the machines of a cluster; nothing is started here."""
