"""A `jax.jit` for tests, which compile much and run little."""

import functools

import jax

# Less work on the machine code of each program: about a third of the time to compile it.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})
