"""Tokenizers that come as vocabulary files: Qwen2's BPE and ESM's residues."""

import json
import shutil

import pytest

from sbdjax.data.tokenizers import has_files, load_tokenizer
from sbdjax.errors import DataError, UsageError
from tests.helpers import require_shared

ESM = (
  "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
).split()
PROTEIN = "MKTAYIAKQR"
QWEN_TEXTS = ("Hello world 2024", "I'll  be\n\n there", "naïve cafe\u0301, 12345!", " \t x")
ADDED = {
  "<|endoftext|>": dict(special=True),
  "<|im_start|>": dict(special=True),
  "<tool_call>": dict(special=False),
}


@pytest.fixture
def esm(tmp_path):
  (tmp_path / "vocab.txt").write_text("\n".join(ESM))
  return tmp_path


@pytest.fixture
def qwen2(tmp_path):
  """GPT-2's vocabulary under Qwen2's names, class and cutting of text."""
  source = require_shared("data", "gpt2_bpe", "vocab.bpe").parent
  shutil.copy(source / "encoder.json", tmp_path / "vocab.json")
  shutil.copy(source / "vocab.bpe", tmp_path / "merges.txt")
  vocab = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
  del vocab["<|endoftext|>"]
  (tmp_path / "vocab.json").write_text(json.dumps(vocab), "utf-8")
  added = {
    str(50256 + i): dict(content=text, normalized=False, lstrip=False, rstrip=False,
                         single_word=False, **flags)
    for i, (text, flags) in enumerate(ADDED.items())
  }  # fmt: skip
  settings = dict(
    tokenizer_class="Qwen2Tokenizer",
    added_tokens_decoder=added,
    eos_token="<|endoftext|>",
    bos_token=None,
    chat_template="{{ '<|im_start|>' + messages[0].content }}",
  )
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
  return tmp_path


def test_a_residue_is_a_token(esm):
  tokenizer = load_tokenizer(str(esm))
  ids = tokenizer.encode(PROTEIN, bos=True, eos=True)
  assert ids == [0, *(ESM.index(x) for x in PROTEIN), 2]
  assert tokenizer.decode(ids) == PROTEIN
  assert (tokenizer.vocab_size, tokenizer.mask_id) == (33, 32)
  assert tokenizer.encode("M<mask>K j") == [20, 32, 15, 3]
  assert tokenizer.decode([0, 20, 32, 15, 2], show_mask="_") == "M_K"
  assert "".join(map(tokenizer.stream().push, [20, 15])) == "MK"


def test_esm_as_transformers_reads_it(esm):
  transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
  theirs = transformers.EsmTokenizer(str(esm / "vocab.txt"))
  ours = load_tokenizer(str(esm))
  for text in (PROTEIN, "M<mask><mask>K", "MXBUZO.-", "<cls>MK<eos>"):
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*BERT, "the", "cat", "##s", "##it", "s", ",", "caf", "##e", "中"]


def bert(folder, tokens, **settings):
  (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", "utf-8")
  if settings:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  return load_tokenizer(str(folder))


def test_berts_word_pieces(tmp_path):
  tokenizer = bert(tmp_path, WORDS)
  ids = tokenizer.encode("The cats, café[MASK]中sit dog", bos=True, eos=True)
  assert [WORDS[i] for i in ids] == (
    "[CLS] the cat ##s , caf ##e [MASK] 中 s ##it [UNK] [SEP]".split()
  )
  assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (2, 3, 4)
  assert tokenizer.vocab_size == len(WORDS)
  assert tokenizer.decode(ids[1:4]) == "the cats"
  with pytest.raises(UsageError, match="WordPiece"):
    tokenizer.token_bytes()


@pytest.mark.parametrize(
  ("tokens", "settings", "pieces"),
  [
    (WORDS, {}, "the caf ##e"),
    ([*WORDS, "The"], {}, "The [UNK]"),
    ([*WORDS, "The"], {"do_lower_case": True}, "the caf ##e"),
    (WORDS, {"do_lower_case": False}, "[UNK] [UNK]"),
    (WORDS, {"strip_accents": False}, "the [UNK]"),
  ],
)
def test_the_case_of_berts_words(tmp_path, tokens, settings, pieces):
  assert [
    tokens[i] for i in bert(tmp_path, tokens, **settings).encode("The café")
  ] == pieces.split()


def test_berts_residues_with_spaces_and_without(tmp_path):
  tokens = [*BERT, *"ACDEFGHIKLMNPQRSTVWY"]
  tokenizer = bert(tmp_path, tokens)
  expected = [2, *(tokens.index(x) for x in "EVQ"), 4, tokens.index("L"), 3]
  for text in ("E V Q [MASK] L", "EVQ[MASK]L"):
    assert tokenizer.encode(text, bos=True, eos=True) == expected
  assert tokenizer.decode(expected, show_mask="_") == "EVQ_L"
  assert tokenizer.encode("e") == [1]
  assert tokenizer.token_bytes()[4:7] == [b"", b"A", b"C"]


def test_bert_as_transformers_reads_it(tmp_path):
  transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
  residues = [*BERT, *"ACDEFGHIKLMNPQRSTVWY"]
  for tokens, lowered, text in (
    (WORDS, True, "The cats, café [MASK] 中sit dog\t."),
    ([*WORDS, "The"], False, "The cats, café [MASK] 中sit dog"),
    (residues, False, "E V Q [MASK] L X"),
  ):
    ours = bert(tmp_path, tokens)
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=lowered)
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_another_vocab_txt_is_taken_for_neither(tmp_path):
  (tmp_path / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n")
  assert has_files(tmp_path)
  with pytest.raises(UsageError, match="no tokenizer in folder"):
    load_tokenizer(str(tmp_path))


def test_qwen2_cuts_words_its_own_way(qwen2):
  tokenizer = load_tokenizer(str(qwen2))
  gpt2 = load_tokenizer(str(require_shared("data", "gpt2_bpe", "vocab.bpe").parent))
  assert tokenizer.encode("Hello world") == gpt2.encode("Hello world")
  digits = tokenizer.encode("2024")  # one token a digit, unlike GPT-2
  assert [tokenizer.decode([i]) for i in digits] == list("2024")
  for text in QWEN_TEXTS[:2]:
    assert tokenizer.decode(tokenizer.encode(text)) == text
  # Composed before it is cut: one character, not a letter and an accent.
  assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")


def test_qwen2s_added_tokens_and_template(qwen2):
  tokenizer = load_tokenizer(str(qwen2))
  assert tokenizer.encode("<|im_start|>a<tool_call>") == [50257, *tokenizer.encode("a"), 50258]
  assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (None, 50256, 50259)
  ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
  assert ids == [50257, *tokenizer.encode("hi")]
  assert tokenizer.added_tokens() == {text: 50256 + i for i, text in enumerate(ADDED)}


def test_qwen2_as_transformers_reads_it(qwen2):
  transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
  theirs = transformers.AutoTokenizer.from_pretrained(qwen2)
  ours = load_tokenizer(str(qwen2))
  for text in (*QWEN_TEXTS, "<|im_start|>user\n<tool_call>"):
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text


def test_added_tokens_that_do_not_follow_the_vocabulary_are_refused(qwen2):
  settings = json.loads((qwen2 / "tokenizer_config.json").read_text())
  settings["added_tokens_decoder"]["60000"] = dict(content="<far>")
  (qwen2 / "tokenizer_config.json").write_text(json.dumps(settings))
  with pytest.raises(DataError, match="'<far>' should get id 60000"):
    load_tokenizer(str(qwen2))


def test_a_class_that_needs_its_tokenizer_json_says_so(qwen2):
  (qwen2 / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizerFast"}')
  with pytest.raises(UsageError, match="RobertaTokenizer, .*tokenizer.json"):
    load_tokenizer(str(qwen2))


def test_no_template_no_conversation(esm):
  with pytest.raises(UsageError, match="no chat template"):
    load_tokenizer(str(esm)).encode_chat([{"role": "user", "content": "hi"}])


def test_a_folder_without_a_vocabulary(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  assert not has_files(tmp_path)
