"""The verb that lists and explains methods, and the table that `generate --help` shows."""

import pytest

from sbdjax import __main__ as entry
from sbdjax.cli import methods
from sbdjax.decode import flat_names, registry
from sbdjax.decode.causal import sbd


def sections(text):
  """Heading -> name -> its settings, of the table."""
  found, entries, name = {}, {}, ""
  for line in text.splitlines():
    if line and not line.startswith(" "):
      entries = found.setdefault(line, {})
    elif line.startswith("   "):
      entries[name] += line.split()
    elif line:
      name, *settings = line.split()
      entries[name] = settings
  return found


def test_the_table_has_every_method_with_its_own_fields():
  table = sections(methods.overview())
  shown = table["methods (--decoder.name=) and their settings (--decoder.SETTING=):"]
  assert shown.keys() == registry.REGISTRY[registry.METHOD].keys()
  for name, cls in registry.REGISTRY[registry.METHOD].items():
    values = flat_names.flat_part(cls(), idle=True)
    assert shown[name] == [f"{k}={v}".replace(" ", "") for k, v in values.items()]
  assert "exit_at=block" in shown["static"] and "gamma=0.1" in shown["sbd"]
  assert table["--decoder.rule= and what it adds:"]["factor"] == ["f=1.0"]
  drawing = table["token, chosen by --decoder.temperature=, and what it adds:"]
  assert drawing["categorical"] == ["temperature=1.0", "top_k=0", "top_p=1.0"]
  parts = [set(names) for heading, names in table.items() if "adds" in heading]
  kinds = [set(names) for kind, names in registry.REGISTRY.items() if kind != registry.METHOD]
  assert parts == kinds


def test_the_table_fits_a_terminal():
  assert max(map(len, methods.overview().splitlines())) <= 80


def test_help_of_generate_ends_with_the_table(capsys):
  with pytest.raises(SystemExit) as ended:
    entry.main(["generate", "--help"])
  assert ended.value.code == 0
  assert capsys.readouterr().out.rstrip().endswith(methods.overview())


def test_without_a_name_the_table_is_printed(capsys):
  assert entry.main(["methods"]) == 0
  assert capsys.readouterr().out == methods.overview() + "\n"


def test_a_method_is_explained_by_its_docstrings_settings_and_source(capsys):
  assert entry.main(["methods", "sbd"]) == 0
  out = capsys.readouterr().out
  assert out.startswith("--decoder.name=sbd\n\nSet Block Decoding (Algorithms 2 and 3)")
  assert sbd.__doc__.strip() in out and "block_size: k, tokens of a block." in out
  assert "settings: block_size=16 rule=eb_entropy gamma=0.1 temperature=0.0" in out
  file, line = next(x for x in out.splitlines() if x.startswith("source: ")).split()[1].split(":")
  assert open(file).read().splitlines()[int(line) - 1 : int(line) + 1] == [
    "@pytree.dataclass",
    "class SBD(Method):",
  ]
  assert sections(out)["--decoder.rule= and what it adds:"]["factor"] == ["f=1.0"]


def test_a_name_of_several_kinds_is_explained_for_each(capsys):
  assert entry.main(["methods", "top_k"]) == 0
  out = capsys.readouterr().out
  assert "--decoder.rule=top_k\n" in out and "--decoder.unmask=top_k\n" in out


OUTSIDE = '''
from sbdjax import pytree
from sbdjax.decode import Rule


@pytree.dataclass
class Widest(Rule):
  """All of a block at once."""

  width: int
'''


def test_a_part_from_outside_is_explained(tmp_path, monkeypatch, capsys):
  (tmp_path / "own_parts.py").write_text(OUTSIDE)
  monkeypatch.syspath_prepend(str(tmp_path))
  assert entry.main(["methods", "own_parts:Widest"]) == 0
  out = capsys.readouterr().out
  assert out.startswith("--decoder.rule=own_parts:Widest\n\nAll of a block at once.\n")
  assert "settings: width=..." in out and f"source:   {tmp_path / 'own_parts.py'}:" in out


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("sdb", "no method or part is called 'sdb' (did you mean 'sbd'?): `methods` lists them"),
    ("eb_entrpy", "did you mean 'eb_entropy'"),
    ("nowhere:Thing", "cannot import nowhere"),
    ("sbdjax.decode.rules:Nothing", "has no Nothing"),
    ("sbdjax.lm:LM", "derived from Method"),
  ],
)
def test_unknown_names_are_one_line(capsys, name, message):
  assert entry.main(["methods", name]) == 2
  captured = capsys.readouterr()
  assert message in captured.err and captured.err.count("\n") == 1 and not captured.out
