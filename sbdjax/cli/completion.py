"""Print a script that completes commands in a shell: completion bash|zsh

    source <(python -m sbdjax completion bash)     # in ~/.bashrc
    source <(python -m sbdjax completion zsh)      # in ~/.zshrc, after compinit

It completes the verbs of the command `sbdjax`, the benchmarks of `bench`, the flags of every verb
and the names of presets. Print it again after an update.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

from sbdjax import presets
from sbdjax.cli import VERBS
from sbdjax.cli.common import Parser

SHELLS = ("bash", "zsh")
_HERE = pathlib.Path(__file__).resolve().parent
_COMMON = ("--help", "--debug")

# Words after the command; `cur` is the one being typed, words[1] the verb.
_FUNCTION = r"""
_sbdjax_words() {
  case "$1" in
%(cases)s
    "") echo "%(verbs)s" ;;
  esac
}
_sbdjax_presets="%(presets)s"
"""
_BASH = r"""
_sbdjax() {
  local line="${COMP_LINE:0:$COMP_POINT}" verb="" cur
  cur="${line##* }"
  [ "$COMP_CWORD" -gt 1 ] && verb="${COMP_WORDS[1]}"
  COMPREPLY=()
  local word
  if [[ "$cur" == --config=preset:* ]]; then
    for word in $(compgen -W "$_sbdjax_presets" -- "${cur#--config=preset:}"); do
      COMPREPLY+=("$word")
    done
  elif [[ "$cur" != --*=* ]]; then
    COMPREPLY=($(compgen -W "$(_sbdjax_words "$verb")" -- "$cur"))
  fi
  [[ "${COMPREPLY[0]}" == *= ]] && compopt -o nospace
  [ "${#COMPREPLY[@]}" -eq 0 ] && compopt -o default
}
complete -F _sbdjax sbdjax
"""
_ZSH = r"""
_sbdjax() {
  local verb="" cur="${words[CURRENT]}"
  (( CURRENT > 2 )) && verb="${words[2]}"
  if [[ "$cur" == --config=preset:* ]]; then
    compset -P '--config=preset:'
    compadd -- ${=_sbdjax_presets}
  elif [[ "$cur" == --*=* ]]; then
    compset -P '--*='
    _files
  else
    local -a found
    found=(${=$(_sbdjax_words "$verb")})
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
    (( CURRENT > 2 )) && _files
  fi
}
compdef _sbdjax sbdjax
"""


def flags(module: str) -> list[str]:
  """The flags that a module of this package adds to its parser, read from its source.

  Importing it would import JAX, which takes longer than a key may. A flag that takes a value ends
  with "=".
  """
  return sorted(set(_flags_of(_HERE / f"{module.rpartition('.')[2]}.py", seen=set())))


def _flags_of(path: pathlib.Path, seen: set[pathlib.Path]) -> Iterator[str]:
  """Of a file, and of the files beside it that it calls with a parser or whose `main` it calls."""
  if path in seen or not path.is_file():
    return
  seen.add(path)
  tree = ast.parse(path.read_text())
  added = {"add_argument"} | {
    node.targets[0].id  # add = parser.add_argument
    for node in ast.walk(tree)
    if isinstance(node, ast.Assign)
    and isinstance(node.targets[0], ast.Name)
    and isinstance(node.value, ast.Attribute)
    and node.value.attr == "add_argument"
  }
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    name = ast.unparse(node.func)
    if name.rpartition(".")[2] in added:
      yield from _flag(node)
    elif name.endswith(".main") or any(map(_is_parser, node.args)):
      for part in ast.walk(node.func):
        if isinstance(part, ast.Name):
          yield from _flags_of(_HERE / f"{part.id}.py", seen)


def _is_parser(argument: ast.expr) -> bool:
  return isinstance(argument, ast.Name) and "parser" in argument.id


def _flag(node: ast.Call) -> Iterator[str]:
  given = {k.arg: k.value for k in node.keywords}
  action = given.get("action")
  alone = isinstance(action, ast.Constant) and str(action.value).startswith("store_")
  for argument in node.args:
    if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
      yield str(argument.value) + ("" if alone else "=")


def benches() -> list[str]:
  """The benchmarks of `bench`: the modules `bench_NAME` that have a function `main`."""
  found = (path.stem.removeprefix("bench_") for path in _HERE.glob("bench_*.py"))
  return sorted(name for name in found if name != "common")


def words() -> dict[str, list[str]]:
  """Verb -> what may follow it; "": the verbs."""
  found = {name: [*flags(verb.module), *_COMMON] for name, verb in VERBS.items()}
  found["bench"] = [*benches(), *_COMMON]
  found["completion"] = [*SHELLS, *_COMMON]
  return found | {"": [*VERBS, "--help"]}


def script(shell: str) -> str:
  """The text that a shell sources."""
  known = words()
  cases = "\n".join(f'    {name}) echo "{" ".join(known[name])}" ;;' for name in known if name)
  parts = dict(cases=cases, verbs=" ".join(known[""]), presets=" ".join(presets.names()))
  return (_FUNCTION % parts + (_BASH if shell == "bash" else _ZSH)).lstrip()


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  parser = Parser(prog="completion", description=__doc__)
  parser.add_argument("shell", choices=SHELLS)
  print(script(parser.parse_args(argv).shell), end="")
  return 0
