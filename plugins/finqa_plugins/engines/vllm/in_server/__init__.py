"""What the server imports by `--middleware`. The folder is on its path; nothing of finqa is."""
