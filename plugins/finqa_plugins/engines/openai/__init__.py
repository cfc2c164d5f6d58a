"""An engine on every server that speaks OpenAI's API, local or hosted: chat, or token ids where it gives them."""
