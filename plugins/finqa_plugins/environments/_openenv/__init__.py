"""OpenEnv's wire protocol, for environments that speak it. A library for environments; it registers nothing."""
