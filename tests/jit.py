"""A `jax.jit` for tests, which compile much and run little; and a count of what was compiled."""

import collections
import functools

import jax

# Less work on the machine code of each program: about a third of the time to compile it.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})

_COUNTED = collections.Counter()


@jax.monitoring.register_event_duration_secs_listener
def _count(event, seconds, **_):
  del seconds
  _COUNTED[event] += 1


def compilations():
  """Programs that XLA has compiled so far, in this process, or the persistent cache gave."""
  return _COUNTED["/jax/core/compile/backend_compile_duration"]
