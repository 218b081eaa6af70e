"""Hugging Face checkpoint directories: config.json, safetensors, tokenizer and generation files."""
