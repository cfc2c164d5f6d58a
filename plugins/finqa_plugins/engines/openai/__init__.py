"""An engine for servers with OpenAI's API, local or hosted: chat, or token ids if the server supports them."""
