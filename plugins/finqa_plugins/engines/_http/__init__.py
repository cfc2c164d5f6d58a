"""HTTP client for OpenAI-compatible servers, shared by the engines that use one."""
