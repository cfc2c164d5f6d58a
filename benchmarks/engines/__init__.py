"""Speed, versions and agreement of the token engines."""
