"""Names that an answer decides on: one, several, and one out of a series with amounts."""
