"""The server that runs inside a box: `python -m finqa_plugins.environments.openenv_finqa.server.serve`."""
