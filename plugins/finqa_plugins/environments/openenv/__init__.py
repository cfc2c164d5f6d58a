"""The `openenv` environment: any server that implements OpenEnv's protocol."""
