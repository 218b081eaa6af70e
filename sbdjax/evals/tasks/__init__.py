"""Benchmark tasks, offline: prompts and metrics as lm-evaluation-harness has them, on given files."""
