"""Corpora, tokenizers and the input pipeline: everything between a file and a numpy batch."""
