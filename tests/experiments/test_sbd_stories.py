"""What the page of SBD on stories260K makes of its records, and what its short runs are."""

import pytest

from tests.experiments.test_ssmd import script


def test_short_runs_differ_in_what_they_say():
  module = script("sbd_stories260k/training")
  plain, whole, alone = (
    module.config_of(name, 2, 7)
    for name in ("masks at random", "all rows masked whole", module.sweep.BASELINE)
  )
  assert (plain.train.steps, plain.train.seed, plain.loss.name) == (7, 2, "sbd")
  assert (plain.loss.full_mask_fraction, whole.loss.full_mask_fraction) == (0.0, 1.0)
  assert dict(alone.loss) == {"name": "ntp"} and alone.optim == plain.optim
  assert alone.data == plain.data and alone.train == plain.train
  with pytest.raises(SystemExit):
    module.main(["--trainings=none of them"])


def test_the_drafts_are_compared_on_the_same_prompts():
  module = script("sbd_stories260k/masked_half")
  assert module.same_prompts()
  value, low, high = module.ar_cost()
  assert low < value < high
