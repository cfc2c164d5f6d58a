"""The plugins that ship with finqa: one folder each."""
