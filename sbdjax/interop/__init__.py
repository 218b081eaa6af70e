"""Weights from and to other programs' formats."""
