"""Tokenizers: bytes, GPT-2, and whatever transformers loads."""
