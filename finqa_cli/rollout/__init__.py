"""Playing of episodes: conversations, episodes, attempts with retries, and many attempts at once."""
