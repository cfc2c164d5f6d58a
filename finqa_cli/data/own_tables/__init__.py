"""Import of a user's own tables and questions, in common file formats, into finqa's data layout."""
