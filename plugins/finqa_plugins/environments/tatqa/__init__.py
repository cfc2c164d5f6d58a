"""The `tatqa` environment: TAT-QA in a single turn, from a table and its paragraphs to an answer with a scale."""
