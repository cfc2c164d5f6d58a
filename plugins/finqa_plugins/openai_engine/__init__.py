"""A chat engine for every server that speaks OpenAI's chat completions, local or hosted."""
