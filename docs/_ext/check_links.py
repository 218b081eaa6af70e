"""Follows every link inside of built pages, and lists those that lead outside.

python docs/_ext/check_links.py docs/_build/html docs/_build/external.txt
"""

from __future__ import annotations

import pathlib
import sys
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import NamedTuple


class Page(NamedTuple):
  """What a page links to and can be linked at.

  Attributes:
    targets: of links, pictures, scripts and styles, as they are written.
    anchors: ids.
  """

  targets: list[str]
  anchors: set[str]


class _Reader(HTMLParser):
  def __init__(self) -> None:
    super().__init__()
    self.page = Page([], set())

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    given = dict(attrs)
    name = "href" if tag in ("a", "link") else "src"
    if given.get(name) and given.get("rel") != "canonical":
      self.page.targets.append(str(given[name]))
    self.page.anchors.update(str(given[key]) for key in ("id", "name") if given.get(key))


def read(path: pathlib.Path) -> Page:
  """The links and ids of an HTML file."""
  reader = _Reader()
  reader.feed(path.read_text(encoding="utf-8"))
  return reader.page


def is_external(target: str) -> bool:
  """Whether a target is not in the folder of the pages."""
  return bool(urllib.parse.urlsplit(target).scheme) or target.startswith("//")


def broken(pages: dict[pathlib.Path, Page], root: pathlib.Path) -> Iterator[str]:
  """A line for every link that leads nowhere.

  Args:
    pages: file -> what is in it.
    root: their folder.
  """
  for path, page in pages.items():
    for target in page.targets:
      if is_external(target):
        continue
      where, _, anchor = urllib.parse.unquote(target).partition("#")
      file = (path.parent / where.partition("?")[0]).resolve() if where else path
      if file.is_dir():
        file /= "index.html"
      if not file.exists():
        yield f"{path.relative_to(root)}: {target} does not exist"
      elif anchor and file in pages and anchor not in pages[file].anchors:
        yield f"{path.relative_to(root)}: {target} has no such place"


def main(argv: list[str]) -> int:
  root, out = pathlib.Path(argv[0]).resolve(), pathlib.Path(argv[1])
  files = (path for path in sorted(root.rglob("*.html")) if "_static" not in path.parts)
  pages = {path: read(path) for path in files}
  outside = sorted({t for page in pages.values() for t in page.targets if is_external(t)})
  out.write_text("".join(f"{target}\n" for target in outside))
  found = list(broken(pages, root))
  print(*found, sep="\n")
  print(f"{len(pages)} pages, {len(found)} broken links; {len(outside)} lead outside: {out}")
  return 1 if found else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
