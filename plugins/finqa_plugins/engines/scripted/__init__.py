"""The scripted expert: solves generated tasks from messages alone."""
