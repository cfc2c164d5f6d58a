"""OpenEnv's wire protocol: a library for environments that use it. It registers nothing."""
