"""An engine for Anthropic's messages API."""
