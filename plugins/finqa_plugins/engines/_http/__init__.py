"""HTTP to OpenAI-compatible servers: a library of the engines that speak to one."""
