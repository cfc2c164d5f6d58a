"""The only folder of finqa on the path of the other interpreter."""
