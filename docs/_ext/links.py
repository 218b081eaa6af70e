"""Links of Markdown files that are read on a host of repositories, for the built pages.

There a link leads to a file of the repository. Here it leads to the page made of that file, where
there is one; other files are named by their paths.
"""

from __future__ import annotations

import os.path
import pathlib
import re
from collections.abc import Mapping

_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"[a-z]+:|#")
_FENCE = re.compile(r"(^(`{3,}|:{3,}).*?^\2\s*?$)", re.DOTALL | re.MULTILINE)


def rewritten(
  text: str, folder: str, page: str, pages: Mapping[str, str], root: pathlib.Path
) -> str:
  """A page's text with the links that lead out of docs/ led somewhere.

  Args:
    text: Markdown.
    folder: of the file it was written for, below the project's root.
    page: the file it is a page of, below docs/.
    pages: file of the repository -> the page made of it, below docs/.
    root: of the project.

  Raises:
    FileNotFoundError: a link to a file that there is not.
  """
  here = os.path.dirname(page)

  def one(found: re.Match) -> str:
    picture, shown, target = found.groups()
    if _OUTSIDE.match(target):
      return found.group(0)
    path, hash_, anchor = target.partition("#")
    file = os.path.normpath(os.path.join(folder, path))
    if file in pages:
      return f"[{shown}]({os.path.relpath(pages[file], here or '.')}{hash_}{anchor})"
    if not (root / file).exists():
      raise FileNotFoundError(f"{page}: a link leads to {file}, which does not exist")
    if picture:
      return f"![{shown}]({os.path.relpath(file, os.path.join('docs', here))})"
    if file.startswith("docs/"):
      return f"[{shown}]({os.path.relpath(file, os.path.join('docs', here))}{hash_}{anchor})"
    return f"`{file}`"

  parts = _FENCE.split(text)
  # Of every fence the pattern gives two groups: itself, and how it begins.
  for i in range(0, len(parts), 3):
    parts[i] = _LINK.sub(one, parts[i])
  return "".join(part for i, part in enumerate(parts) if i % 3 != 2)
