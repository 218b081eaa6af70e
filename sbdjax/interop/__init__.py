"""Weights from and to other programs' formats."""

from sbdjax.interop.pretrained import GenerationDefaults, Pretrained, load_pretrained

__all__ = ["GenerationDefaults", "Pretrained", "load_pretrained"]
