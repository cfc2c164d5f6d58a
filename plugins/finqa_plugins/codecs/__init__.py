"""Chat codecs: messages to token ids and back."""
