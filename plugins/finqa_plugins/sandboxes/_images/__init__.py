"""Images of environment servers: what is in them, for every provider whose sandboxes start from images."""
