"""A user's own tables and questions, in the forms in which people keep them, turned into finqa's data layout."""
