"""Chat templates of Hugging Face checkpoints: Jinja2 programs that write a conversation as text.

A template is code from whoever made the checkpoint. It runs in Jinja2's immutable sandbox, on plain
JSON values, with the settings and helpers `transformers` documents for templates.
"""

from __future__ import annotations

import datetime
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from sbdjax.errors import DataError, UsageError

DEFAULT = "default"


class ChatTemplate:
  """The templates of one checkpoint, by name; most have only "default".

  Attributes:
    sources: Jinja2 source of each.
    special_tokens: strings templates may use: bos_token, eos_token, ...
  """

  def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str], where: str):
    self.sources, self.special_tokens = dict(sources), dict(special_tokens)
    self._where = where

  def render(
    self,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    name: str = DEFAULT,
    **variables: Any,
  ) -> str:
    """The conversation as the text the model was trained on.

    Args:
      messages: {"role": ..., "content": ...} each.
      add_generation_prompt: end with what begins an answer.
      tools: JSON schemas of functions the model may call.
      name: which template.
      variables: whatever else the template reads (enable_thinking, ...).

    Raises:
      UsageError: no such template, or values that are no plain JSON.
      DataError: the template refuses the conversation, or is broken.
    """
    import jinja2  # here: only conversations need it

    if name not in self.sources:
      raise UsageError(
        f"{self._where} has no chat template {name!r}: it has {', '.join(sorted(self.sources))}"
      )
    try:
      messages, tools, variables = json.loads(json.dumps([list(messages), tools, variables]))
    except (TypeError, ValueError) as e:
      raise UsageError(f"messages, tools and variables must be plain JSON: {e}") from e
    try:
      return self._compiled(name).render(
        messages=messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        **{**self.special_tokens, **variables},
      )
    except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as e:
      raise DataError(f"the chat template of {self._where} failed: {e}") from e

  @functools.cache  # noqa: B019 (templates live as long as their tokenizer)
  def _compiled(self, name: str) -> Any:
    return _environment().from_string(self.sources[name])


@functools.cache
def _environment() -> Any:
  """Jinja2's sandbox with what templates may expect of it."""
  import jinja2
  from jinja2 import ext, nodes, sandbox

  class GenerationTag(ext.Extension):
    """{% generation %} marks the model's own words for training; here it only holds them."""

    tags = {"generation"}

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
      return nodes.Scope(body, lineno=line)

  def fail(message):
    raise jinja2.TemplateError(message)

  def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # Jinja's own escapes HTML.
    return json.dumps(
      value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )

  environment = sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, GenerationTag]
  )
  environment.filters["tojson"] = tojson
  environment.globals["raise_exception"] = fail
  environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
  return environment


def load(folder: pathlib.Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
  """The templates beside a tokenizer, or None.

  Args:
    folder: may hold chat_template.jinja or chat_template.json, which come first.
    settings: tokenizer_config.json, which may hold `chat_template` (text, or a list of named ones).

  Raises:
    DataError: a file that cannot be read.
  """
  found: Any = settings.get("chat_template")
  try:
    if (folder / "chat_template.jinja").is_file():
      found = (folder / "chat_template.jinja").read_text("utf-8")
    elif (folder / "chat_template.json").is_file():
      found = json.loads((folder / "chat_template.json").read_text("utf-8"))["chat_template"]
    if not found:
      return None
    named = {x["name"]: x["template"] for x in found} if isinstance(found, list) else None
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise DataError(f"cannot read the chat template in {folder}: {e}") from e
  texts = {k: _text(v) for k, v in settings.items() if k.endswith("_token")}
  special = {k: text for k, text in texts.items() if text}
  return ChatTemplate(named or {DEFAULT: found}, special, str(folder))


def _text(token: Any) -> str | None:
  """A special token's text, however tokenizer_config.json writes it."""
  token = token.get("content") if isinstance(token, dict) else token
  return token if isinstance(token, str) else None
