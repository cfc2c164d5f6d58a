"""Token engine on vLLM: a server process that the engine starts and supervises, or running servers by URL."""
