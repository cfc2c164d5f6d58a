"""Code that the server imports by `--middleware`. Of finqa, only this folder is on the server's path."""
