"""How `make docs` builds these pages: Sphinx, MyST, executed notebooks; nothing is fetched."""

import os
import pathlib
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "_ext")]

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "sbdjax"
author = ", ".join(person["name"] for person in _PROJECT["authors"])
copyright = author
version = release = _PROJECT["version"]

extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.autosummary",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
  "sphinx_copybutton",
  "mathtext",
  "docstrings",
  "written",
]
source_suffix = {".md": "myst-nb", ".py": "myst-nb", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_ext", "examples", "conf.py"]
highlight_language = "text"  # of code whose language is not said

# Markdown.
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3
suppress_warnings = ["myst.strikethrough", "myst.header", "myst-nb.lexer"]

# Notebooks are Python files (percent format); their outputs are made by the build, never committed.
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
# SBDJAX_NOTEBOOKS=off: without running them, to look at wording; "cache": those that changed.
nb_execution_mode = os.environ.get("SBDJAX_NOTEBOOKS", "force")
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"

# The API, from docstrings.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_use_ivar = True
default_role = "code"

# Equations are drawn while the pages are built, so that they need no script from elsewhere.
html_math_renderer = "mathtext"
html_theme = "sphinx_book_theme"
html_title = "sbdjax"
html_static_path = ["_static"]
html_css_files = ["sbdjax.css"]
html_theme_options = {
  "show_navbar_depth": 1,
  "show_toc_level": 2,
  "use_download_button": False,
  "use_fullscreen_button": False,
  "navigation_with_keys": False,
  "navbar_persistent": [],  # the search stands above the list of pages
}
