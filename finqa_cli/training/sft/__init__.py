"""Supervised fine-tuning on recorded demonstrations."""
