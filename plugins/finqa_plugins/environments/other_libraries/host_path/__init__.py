"""The one folder that is put on the path of the other interpreter."""
