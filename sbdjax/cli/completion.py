"""Print a script that completes commands in a shell: completion bash|zsh

    source <(python -m sbdjax completion bash)     # in ~/.bashrc
    source <(python -m sbdjax completion zsh)      # in ~/.zshrc, after compinit

It completes the verbs of the command `sbdjax`, the benchmarks of `bench`, the flags of every verb
and the names of presets. Print it again after an update.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator, Mapping

from sbdjax import presets
from sbdjax.cli import VERBS
from sbdjax.cli.common import Parser

SHELLS = ("bash", "zsh")
_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parent
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
  path = _ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
  return sorted(set(_flags_of(path, "", seen=set())))


def _flags_of(path: pathlib.Path, function: str, seen: set[tuple[str, str]]) -> Iterator[str]:
  """Of a function of a file, or of the whole file, and of all that it hands a parser to."""
  if (str(path), function) in seen:
    return
  seen.add((str(path), function))
  tree = ast.parse(path.read_text())
  imported = dict(_imports(tree))
  for part in tree.body:
    if not function or getattr(part, "name", "") == function:
      yield from _flags_in(part, path, imported, seen)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
  """Name -> what it stands for, of the imports from this package."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sbdjax"):
      for alias in node.names:
        yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _flags_in(
  part: ast.AST, path: pathlib.Path, imported: Mapping[str, str], seen: set[tuple[str, str]]
) -> Iterator[str]:
  added = {"add_argument"} | {
    node.targets[0].id  # add = parser.add_argument
    for node in ast.walk(part)
    if isinstance(node, ast.Assign)
    and isinstance(node.targets[0], ast.Name)
    and isinstance(node.value, ast.Attribute)
    and node.value.attr == "add_argument"
  }
  for node in ast.walk(part):
    if not isinstance(node, ast.Call):
      continue
    name = ast.unparse(node.func)
    if name.rpartition(".")[2] in added:
      yield from _flag(node)
    elif name.endswith(".main"):  # a verb that hands over to others
      for module in (x.id for x in ast.walk(node.func) if isinstance(x, ast.Name)):
        yield from _called(imported.get(module, ""), "", seen)
    elif any(map(_is_parser, node.args)):
      module, _, function = imported.get(name.partition(".")[0], "").rpartition(".")
      if "." in name:  # of an imported module
        module, function = f"{module}.{function}", name.partition(".")[2]
      yield from _called(module, function, seen) if function else _flags_of(path, name, seen)


def _called(module: str, function: str, seen: set[tuple[str, str]]) -> Iterator[str]:
  """The flags of a function of a module; nothing where that is no file of this package."""
  path = _ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
  if module and path.is_file():
    yield from _flags_of(path, function, seen)


def _is_parser(argument: ast.expr) -> bool:
  return isinstance(argument, ast.Name) and "parser" in argument.id


def _flag(node: ast.Call) -> Iterator[str]:
  """The first long name of an argument; the others are older ones."""
  given = {k.arg: k.value for k in node.keywords}
  if "help" in given and ast.unparse(given["help"]).endswith("SUPPRESS"):
    return
  action = given.get("action")
  both = action is not None and ast.unparse(action).endswith("BooleanOptionalAction")
  alone = isinstance(action, ast.Constant) and str(action.value).startswith("store_")
  values = (str(a.value) for a in node.args if isinstance(a, ast.Constant))
  for name in [value for value in values if value.startswith("--")][:1]:
    yield name if alone or both else f"{name}="
    if both:
      yield f"--no-{name.removeprefix('--')}"


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
