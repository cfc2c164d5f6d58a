"""Any environment that serves OpenEnv's protocol."""
