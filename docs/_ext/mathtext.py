"""Equations as SVG by matplotlib's mathtext: no LaTeX is needed to build, no script to read."""

from __future__ import annotations

import functools
import html
from typing import TYPE_CHECKING

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, TextToPath

if TYPE_CHECKING:
  from docutils import nodes
  from sphinx.application import Sphinx

_SIZE = 10.0  # points; the SVG is in em
_LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


@functools.cache
def svg(tex: str) -> str:
  """One line of mathematics as an inline SVG that takes the colour and size of the text.

  Raises:
    ValueError: mathtext cannot read it.
  """
  font = FontProperties(family="serif", math_fontfamily="cm", size=_SIZE)
  line = f"${' '.join(tex.split())}$"
  width, height, depth = TextToPath().get_text_width_height_descent(line, font, ismath=True)
  parts = []
  for points, code in TextPath((0, 0), line, prop=font).iter_segments(simplify=False):
    if code == Path.CLOSEPOLY:
      parts.append("Z")
      continue
    pairs = points.reshape(-1, 2)
    parts.append(_LETTERS[code] + " ".join(f"{x:.2f} {-y:.2f}" for x, y in pairs))
  box = f"0 {-(height - depth):.2f} {width:.2f} {height:.2f}"
  style = f"height:{1.05 * height / _SIZE:.3f}em;vertical-align:{-1.05 * depth / _SIZE:.3f}em"
  label = html.escape(tex, quote=True)
  return (
    f'<svg class="math" role="img" aria-label="{label}" viewBox="{box}" style="{style}">'
    f'<path d="{"".join(parts)}"/></svg>'
  )


def block(tex: str) -> str:
  """Lines of mathematics, with two backslashes between them, below each other."""
  lines = [line for line in tex.split(r"\\") if line.strip()]
  return f'<div class="math-block">{"<br>".join(map(svg, lines))}</div>'


def setup(app: Sphinx) -> dict[str, bool]:
  from docutils.nodes import SkipNode

  def visitor(draw):
    def visit(translator, node: nodes.Node) -> None:
      translator.body.append(draw(node.astext()))
      raise SkipNode

    return visit

  app.add_html_math_renderer("mathtext", (visitor(svg), None), (visitor(block), None))
  return {"parallel_read_safe": True, "parallel_write_safe": True}
