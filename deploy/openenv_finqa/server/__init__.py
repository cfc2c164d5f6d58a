"""The server of this OpenEnv environment."""
