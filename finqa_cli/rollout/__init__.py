"""Playing episodes: one conversation, one episode, one attempt with retries, many attempts at once."""
