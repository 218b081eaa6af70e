"""Weights from and to other programs' formats."""

from sbdjax.interop.pretrained import Pretrained, load_pretrained, save_pretrained
from sbdjax.interop.settings import GenerationDefaults

__all__ = ["GenerationDefaults", "Pretrained", "load_pretrained", "save_pretrained"]
