"""Attention backends: each turns a mask rule into a plan once a forward, and attends by it."""
