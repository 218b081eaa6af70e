"""The script that completes commands: its words, without JAX, and a real bash that uses them."""

import importlib
import re
import shutil
import subprocess
import sys

import pytest

from sbdjax import presets
from sbdjax.cli import VERBS, completion
from sbdjax.cli.bench import BENCHES
from sbdjax.errors import UsageError


def test_every_verb_and_benchmark_is_listed():
  words = completion.words()
  assert set(words[""]) == {*VERBS, "--help"} and set(words) == {*VERBS, ""}
  assert set(BENCHES) < set(words["bench"])


@pytest.mark.parametrize("verb", ["generate", "train", "quickstart", "tune", "completion"])
def test_flags_are_those_of_the_help(verb, capsys):
  with pytest.raises(SystemExit):
    importlib.import_module(VERBS[verb].module).main(["--help"])
  usage = capsys.readouterr().out
  told = {flag for flag in re.findall(r"^  (--[a-z_]+)", usage, re.MULTILINE)}
  found = {word.rstrip("=") for word in completion.words()[verb] if word.startswith("--")}
  assert found == told | {"--help", "--debug"}


def test_a_verb_that_hands_over_to_others_has_their_flags():
  words = set(completion.words()["evaluate"])
  assert {"--checkpoint=", "--tasks=", "--data="} <= words
  assert {"--multiturn", "--no-multiturn"} <= words  # which take no value


def test_it_starts_no_jax_and_needs_a_known_shell(capsys):
  code = (
    "import sys; from sbdjax.cli import completion; completion.main(['bash']); "
    "sys.exit('jax' in sys.modules)"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
  assert done.returncode == 0
  with pytest.raises(UsageError, match="fish"):
    completion.main(["fish"])


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
@pytest.mark.parametrize(
  ("typed", "expected"),
  [
    ("sbdjax traj", {"trajectories"}),
    ("sbdjax generate --check", {"--checkpoint="}),
    ("sbdjax bench roof", {"roofline"}),
    ("sbdjax train --config=preset:text8_", {n for n in presets.names() if n.startswith("text8_")}),
  ],
)
def test_bash_completes(typed, expected, tmp_path):
  (tmp_path / "script").write_text(completion.script("bash"))
  words = typed.split(" ")
  program = f"""
    source {tmp_path}/script; compopt() {{ :; }}
    COMP_LINE='{typed}' COMP_POINT={len(typed)} COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
    _sbdjax; echo "${{COMPREPLY[@]}}"
  """
  done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
  assert set(done.stdout.split()) == expected


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh_reads_the_script(tmp_path):
  (tmp_path / "script").write_text(completion.script("zsh"))
  subprocess.run(["zsh", "-n", str(tmp_path / "script")], check=True)
