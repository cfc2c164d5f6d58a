"""Parts that several commands use: options, output, progress."""
