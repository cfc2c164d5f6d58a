"""The run folder: what a command leaves on disk, durable from the moment that it is reported."""
