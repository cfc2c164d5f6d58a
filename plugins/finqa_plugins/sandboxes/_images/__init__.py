"""Contents of images of environment servers, for all providers whose sandboxes start from images."""
