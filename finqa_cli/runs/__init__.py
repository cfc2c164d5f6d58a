"""The run folder: everything that a command writes to disk, durable before it is reported."""
