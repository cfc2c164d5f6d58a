"""The `finqa-text` environment: original FinQA in a single turn, from a page of text and a table to a program."""
