"""From settings and plugins to live objects."""
