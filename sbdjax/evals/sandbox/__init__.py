"""Runs code that a model wrote, apart from everything else."""

from sbdjax.evals.sandbox.outside import Outcome, Sandbox

__all__ = ["Outcome", "Sandbox"]
