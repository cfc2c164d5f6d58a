"""The server that runs inside a sandbox: `python -m finqa_plugins.environments.openenv_finqa.server.run_server`."""
