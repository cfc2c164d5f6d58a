"""HTTP client for OpenAI-compatible servers, shared by the engines that use one."""

OPERATIONAL = (
    *("max_concurrent", "requests_per_minute", "tokens_per_minute", "max_retries", "backoff_s", "max_wait_s"),
    *("give_up_s", "connect_timeout_s", "request_timeout_s", "prices", "api_key_env"),
)
"""Options of engines on servers that cannot change what a model answers."""
