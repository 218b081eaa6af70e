"""The pages of docs/: what the build writes, what links to what, and the front page's length."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
from matplotlib.figure import Figure
from packaging.requirements import Requirement

import sbdjax
from sbdjax import field_docs, losses, presets
from sbdjax.cli import VERBS
from sbdjax.decode import registry
from sbdjax.evals.tasks import registry as tasks
from sbdjax.train.settings import schema
from tests.test_project import PROJECT

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module", autouse=True)
def extensions():
  """docs/_ext, as docs/conf.py has it."""
  sys.path.insert(0, str(DOCS / "_ext"))
  yield
  sys.path.remove(str(DOCS / "_ext"))


def module(name):
  spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
  made = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(made)
  return made


def test_the_front_page_is_short_and_names_the_two_commands():
  text = (ROOT / "README.md").read_text()
  assert len(text.split()) <= 700
  assert "\nmake quickstart " in text and "\nmake test " in text
  assert text.count("![") == 1 and text.count("```python") == 1


PAGES = ["README.md", *(p.relative_to(ROOT).as_posix() for p in sorted(DOCS.rglob("*.md")))]


@pytest.mark.parametrize("page", [p for p in PAGES if "/generated/" not in p and "_build" not in p])
def test_links_lead_somewhere(page):
  """As they are read in the repository; `make docs` checks them in the built pages."""
  text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
  for target in re.findall(r"\]\(([^)#\s]+)", text):
    if not re.match(r"[a-z]+:", target) and "generated/" not in target:
      assert ((ROOT / page).parent / target).exists(), target


def test_links_out_of_the_pages_are_led_to_pages():
  links = module("links")
  pages = {"experiments/a/README.md": "generated/experiments/a.md", "SECURITY.md": "generated/s.md"}
  text = (
    "[a](../../experiments/a/README.md#x) [b](../index.md) ![p](../../docs/conf.py) "
    "[u](https://x.y) [c](../../Makefile)\n```\n[a](no/such/file)\n```\n[i](index.md)"
  )
  found = links.rewritten(text, "docs/methods", "methods/page.md", pages, ROOT)
  assert "[a](../generated/experiments/a.md#x)" in found and "![p](../../docs/conf.py)" not in found
  assert "`Makefile`" in found and "[u](https://x.y)" in found and "[a](no/such/file)" in found
  with pytest.raises(FileNotFoundError, match="no/such"):
    links.rewritten("[a](no/such)", "docs", "page.md", pages, ROOT)


def test_every_equation_can_be_drawn():
  mathtext = module("mathtext")
  found = [
    tex
    for path in sorted(DOCS.glob("[!_g]*/*.md")) + sorted(DOCS.glob("*.md"))
    for tex in re.findall(r"^\$\$(.*?)\$\$$", path.read_text(), re.DOTALL | re.MULTILINE)
  ]
  assert len(found) >= 10
  text = "".join(path.read_text() for path in DOCS.glob("methods/*.md"))
  inline = re.findall(r"(?<!\$)\$([^$\n]+)\$(?!\$)", text)
  assert len(inline) >= 5
  for tex in found + inline:
    assert mathtext.block(tex).count("<svg") >= 1
  with pytest.raises(ValueError, match="nosuch"):
    mathtext.svg(r"\nosuch{x}")


def test_docstrings_become_rst():
  prepared = module("docstrings").prepared
  doc = """Makes y of x* and |x|, `a_` and b_.

    y = a * x

  * a point, and
    more of it

Attributes:
  x: a number*.

Metrics:
  loss: one."""
  found = "\n".join(prepared(doc.split("\n")))
  assert r"x\* and \|x\|, `a_` and b\_." in found
  assert "\n::\n\n    y = a * x" in found and "Attributes:\n  x: a number\\*." in found
  assert "Metrics::\n\n  loss: one." in found


@pytest.mark.long
@pytest.mark.parametrize(
  "page", ["tour.py", *(f"notebooks/{p.name}" for p in DOCS.glob("notebooks/*.py"))]
)
def test_notebooks_run_as_plain_python(page, tmp_path):
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
  command = [sys.executable, str(DOCS / page)]
  subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=600)


def test_every_page_is_in_the_index():
  with_others = module("written").with_other_pages
  text = "```{toctree}\n:hidden:\n\na\nlater\nmethods/index\n{others}\n```"
  found = with_others(text, ["a", "index", "c", "b"])
  assert found == "```{toctree}\n:hidden:\n\na\nmethods/index\nb\nc\n```"


def test_broken_links_are_found(tmp_path):
  check = module("check_links")
  (tmp_path / "a.html").write_text('<a href="b.html#here">x</a><a href="https://x.y">y</a>')
  (tmp_path / "b.html").write_text('<p id="here"></p><a href="#no"></a><img src="none.png">')
  assert check.main([str(tmp_path), str(tmp_path / "out.txt")]) == 1
  assert (tmp_path / "out.txt").read_text() == "https://x.y\n"
  pages = {p: check.read(p) for p in tmp_path.glob("*.html")}
  assert sorted(check.broken(pages, tmp_path)) == [
    "b.html: #no has no such place",
    "b.html: none.png does not exist",
  ]


def test_every_field_of_a_config_is_on_its_page():
  page = module("written").config_page()
  for name in losses.names():
    for section, cls in schema({"loss": {"name": name}}).items():
      for field in field_docs.of_class(cls, section):
        assert f"\n`{field.name}` (" in page, field.name


def test_every_decoder_preset_and_verb_is_on_its_page():
  written = module("written")
  page = written.decoder_page()
  for kind, names in registry.REGISTRY.items():
    assert all(f"`--decoder.{kind}={name}`" in page for name in names)
  page = written.presets_page()
  assert all(f"\n## {name}\n" in page for name in presets.names())
  page = written.verbs_page()
  assert all(f"| `{name}` |" in page for name in VERBS)


def test_every_public_name_is_on_the_page_of_the_api():
  page = module("written").api_page()
  for name in sbdjax.__all__:
    assert name.startswith("_") or re.search(rf":: sbdjax.{name}\b|`sbdjax.{name}`", page), name
  assert "   :members: AR, Alternating" in page


def test_layers_are_drawn_from_the_test_that_holds_them():
  drawings = module("drawings")
  table = drawings.literals(ROOT / "tests" / "test_architecture.py")
  figure = Figure()
  drawings.layers(figure)
  texts = " ".join(text.get_text() for text in figure.axes[0].texts)
  named = {name for names in table["LAYERS"] for name in names} | set(table["SIDE"])
  assert len(named) > 20 and named <= set(texts.split())


_LONG = ["mask_sbd", "mask_jacobi", "mask_freedave", "mask_block_diffusion", "block_walk"]


@pytest.mark.parametrize(
  "name", ["mask_verified", *(pytest.param(n, marks=pytest.mark.long) for n in _LONG)]
)
def test_pictures_are_drawn_from_the_code(name):
  figure = Figure()
  module("drawings").ALL[name].draw(figure)
  assert all(axes.images or axes.patches for axes in figure.axes)


def test_pins_are_inside_the_ranges():
  ranges = {Requirement(text).name.lower(): Requirement(text) for text in PROJECT["dependencies"]}
  lines = (ROOT / "requirements.txt").read_text().splitlines()
  pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
  assert {pin.name.lower() for pin in pins} == set(ranges)
  for pin in pins:
    for clause in pin.specifier:
      if clause.operator == "==":
        assert ranges[pin.name.lower()].specifier.contains(clause.version), pin
  docs = {
    Requirement(text).name: Requirement(text) for text in PROJECT["optional-dependencies"]["docs"]
  }
  for line in (ROOT / "requirements-docs.txt").read_text().splitlines():
    if not line.startswith("#"):
      name, version = line.split("==")
      assert docs[name].specifier.contains(version)


def test_the_citation_and_the_container_know_this_version_and_these_commands():
  citation = (ROOT / "CITATION.cff").read_text()
  assert f"\nversion: {PROJECT['version']}\n" in citation
  container = (ROOT / "Dockerfile").read_text()
  assert (
    '"make", "quickstart"' in container and "make test" in container and "EXTRA=cuda" in container
  )


def test_every_benchmark_is_on_the_page_of_benchmarks():
  page = (DOCS / "evaluation.md").read_text()
  for name in tasks.tasks():
    words = {name} if f"`{name}`" in page else set(name.split(":"))
    assert all(f"`{word}`" in page for word in words), name
