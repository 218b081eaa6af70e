"""sbdjax: language models that emit several tokens per forward pass."""

__version__ = "0.1.0"
