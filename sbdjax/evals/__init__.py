"""Measures of generated text."""
