"""The `finqa` environment: financial questions over SQL tools, spoken through OpenEnv's wire protocol."""
