"""Methods and rules of a package outside the tree: generated with and swept, as a researcher would."""

import importlib
import json
import sys

import pytest

from sbdjax import __main__ as entry

FILES = {
  "__init__.py": "",
  "rules.py": '''
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.decode import Rule


@pytree.dataclass
class MyRule(Rule):
  """The leftmost masks, `width` of them."""

  width: int = 1

  def __call__(self, logits_BxTxV, masked_BxT):
    return masked_BxT & (jnp.cumsum(masked_BxT, axis=1) <= self.width)
''',
  "decoding.py": '''
from my_lab.rules import MyRule
from sbdjax import pytree
from sbdjax.decode import SBD, Greedy, Method, Rule, TokenSampler


@pytree.dataclass
class MyMethod(Method):
  """SBD with blocks of twice `half` tokens."""

  half: int = pytree.static(default=2)
  rule: Rule = MyRule()
  token: TokenSampler = Greedy()

  def sampler(self, lm, limits):
    return SBD(2 * self.half, self.rule, self.token).sampler(lm, limits)
''',
}
CONFIG = """
from ml_collections import ConfigDict

def get_config():
  return ConfigDict(dict(
    sweep=dict(checkpoint="stories260K-sbd", num_prompts=2, prompt_tokens=4, repeats=1),
    decoder=dict(name="my_lab.decoding:MyMethod", max_tokens=8),
    data=dict(source="stories"),
  ))

def get_sweep():
  return [
    {"decoder.width": 1},
    {"decoder.width": 4},
    {"decoder.name": "sbd", "decoder.block_size": 4, "decoder.rule": "my_lab.rules:MyRule"},
    {"decoder.name": "ar"},
  ]
"""


@pytest.fixture(autouse=True, scope="module")
def my_lab(tmp_path_factory):
  """The package on the path of Python."""
  folder = tmp_path_factory.mktemp("lab")
  (folder / "my_lab").mkdir()
  for name, text in FILES.items():
    (folder / "my_lab" / name).write_text(text)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(folder)
    importlib.invalidate_caches()
    yield
  # Another file of tests has a package of this name.
  for name in [n for n in sys.modules if n.split(".")[0] == "my_lab"]:
    del sys.modules[name]


def test_a_method_and_a_rule_from_outside_generate(capsys):
  flags = [
    "--checkpoint=stories260K-sbd", "--prompt=Once upon a time", "--prompt=Lily",
    "--json", "--decoder.name=my_lab.decoding:MyMethod", "--decoder.rule=my_lab.rules:MyRule",
    "--decoder.width=3", "--decoder.max_tokens=8",
  ]  # fmt: skip
  assert entry.main(["generate", *flags]) == 0
  lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert len(lines) == 2
  for line in lines:
    # Three and then one of each block of four.
    assert line["reveal_step"] == [0, 0, 0, 1, 2, 2, 2, 3] and line["nfe"] == 4
    assert line["decoder"] == {
      "max_tokens": 8,
      "name": "my_lab.decoding:MyMethod",
      "half": 2,
      "rule": "my_lab.rules:MyRule",
      "width": 3,
      "temperature": 0.0,
    }


@pytest.mark.long
def test_they_are_swept_beside_shipped_ones(tmp_path):
  (tmp_path / "config.py").write_text(CONFIG)
  flags = [f"--config={tmp_path}/config.py", f"--workdir={tmp_path}/run"]
  assert entry.main(["sweep", *flags, "--config.decoder.half=3"]) == 0
  points = [json.loads(line) for line in (tmp_path / "run" / "points.jsonl").open()]
  slow, fast, shipped, ar = (point["settings"]["decoder"] for point in points)
  assert (slow["name"], slow["half"], slow["width"]) == ("my_lab.decoding:MyMethod", 3, 1)
  assert slow["rule"] == shipped["rule"] == "my_lab.rules:MyRule" and fast["width"] == 4
  assert "half" not in shipped and "rule" not in ar
  nfe = [point["nfe"] for point in points]
  assert nfe[0] == nfe[2] == nfe[3] > nfe[1]  # one token per forward each, but for the second
  # Width is a number: the second point runs the program of the first.
  assert points[0]["compile_seconds"] > 0 == points[1]["compile_seconds"]


def test_a_misspelt_setting_of_theirs_names_the_nearest(capsys):
  flags = ["--decoder.name=my_lab.decoding:MyMethod", "--decoder.wdth=3"]
  assert entry.main(["generate", "--checkpoint=stories260K-sbd", "--prompt=a", *flags]) == 2
  told = capsys.readouterr().err
  assert "unknown field decoder.wdth (did you mean 'width'?)" in told
  assert "has half, rule, width, temperature" in told.replace("name, ", "")
