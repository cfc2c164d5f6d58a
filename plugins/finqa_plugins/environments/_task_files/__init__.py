"""Tasks in files, for environments that read them. A library for environments; it registers nothing."""
