"""Records of different processes are the same bytes: nothing follows the order of a set."""

import os
import subprocess
import sys

import pytest

RECORDS = """
import json
from sbdjax import presets
from sbdjax.cli import methods
from sbdjax.decode import flat_names, registry
from sbdjax.decode.decoding import Decoding
from sbdjax.settings import plain
from sbdjax.train.settings import schema

for name, cls in registry.REGISTRY["name"].items():
  print(json.dumps(Decoding(cls()).flat()), list(flat_names.field_types({"name": name})))
print(methods.overview())
for name in presets.names():
  config = plain(presets.load(name))
  print(json.dumps(config))
  if "loss" in config:
    print(list(schema(config)))
"""


def _printed(seed):
  environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
  done = subprocess.run(
    [sys.executable, "-c", RECORDS], env=environment, capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.long
def test_records_do_not_follow_the_hash_seed():
  first, *others = map(_printed, (0, 1))
  assert len(first) > 1000 and all(other == first for other in others)
