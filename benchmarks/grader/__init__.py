"""Measurements of the graders: corpora of honest forms and hacks, hostile inputs, random answers."""
