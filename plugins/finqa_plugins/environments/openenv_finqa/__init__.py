"""The `finqa` environment: financial questions over SQL tools, over OpenEnv's wire protocol."""
