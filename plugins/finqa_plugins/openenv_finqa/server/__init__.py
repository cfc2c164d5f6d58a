"""The server that runs inside a box: `python -m finqa_plugins.openenv_finqa.server`."""
