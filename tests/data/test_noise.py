"""Noise of a trajectory's points and which of them a schedule takes."""

import numpy as np
import pytest

from sbdjax.data import noise
from sbdjax.data.noise import NoiseConfig
from sbdjax.errors import UsageError

# Four guesses of [1, 2, 3, 4] and the answer.
POINTS = np.array([[9, 9, 9, 9], [1, 9, 3, 9], [1, 2, 9, 4], [1, 2, 3, 9], [1, 2, 3, 4]])


def test_the_two_definitions_of_noise():
  np.testing.assert_allclose(noise.wrong_tokens(POINTS), [1, 0.5, 0.25, 0.25, 0])
  np.testing.assert_allclose(noise.wrong_suffix(POINTS), [1, 0.75, 0.5, 0.25, 0])


@pytest.mark.parametrize(
  ("fields", "expected"),
  [
    # targets 0, 1/4, 1/2, 3/4, 0: the earliest of equally near points
    ({"schedule": "linear"}, [4, 2, 1, 0, 4]),
    ({"schedule": "linear", "ratio": "suffix"}, [4, 3, 2, 1, 4]),
    # targets 0, 1/3, 2/3, 1, 0
    ({"schedule": "linear_closed"}, [4, 2, 1, 0, 4]),
    ({"schedule": "linear_closed", "ratio": "suffix"}, [4, 3, 1, 0, 4]),
    # targets 1, 3/4, 1/2, 1/4, 1
    ({"schedule": "reverse", "ratio": "suffix"}, [0, 1, 2, 3, 0]),
  ],
  ids=str,
)
def test_which_point_a_schedule_takes(fields, expected):
  config = NoiseConfig(window=4, **fields)
  found = noise.choose(config, 5 * [POINTS], np.random.default_rng(0))
  np.testing.assert_array_equal(found, POINTS[expected])


def test_the_noise_of_a_short_last_block_is_a_share_of_its_own_tokens():
  short = POINTS[:, :1][[0, 1]]
  config = NoiseConfig(window=2)
  first, second = noise.choose(config, [short, short], np.random.default_rng(0))
  assert (first[0], second[0]) == (1, 9)  # targets 0 and 1/2: both equally near, the earlier


def test_a_shift_is_cyclic_and_takes_every_value():
  config = NoiseConfig(window=4, ratio="suffix", shift=True)
  plain = [4, 3, 2, 1]
  seen = set()
  for seed in range(40):
    found = noise.choose(config, 5 * [POINTS], np.random.default_rng(seed))
    shifts = [
      s for s in range(4) if np.array_equal(found, POINTS[[plain[(i + s) % 4] for i in range(5)]])
    ]
    assert len(shifts) == 1
    seen.add(shifts[0])
  assert seen == {0, 1, 2, 3}


def test_random_points_are_equally_likely():
  config, rng = NoiseConfig(schedule="random"), np.random.default_rng(0)
  found = noise.choose(config, 5000 * [POINTS], rng)
  matches = [np.all(np.array(found) == point, axis=1).mean() for point in POINTS]
  np.testing.assert_allclose(matches, 0.2, atol=0.02)


@pytest.mark.parametrize(
  "fields", [{"schedule": "cosine"}, {"ratio": "prefix"}, {"blocks": "two"}, {"window": 0}]
)
def test_unusable_settings_are_refused(fields):
  (name,) = fields
  with pytest.raises(UsageError, match=f"data.noise.{name}"):
    NoiseConfig(**fields)
