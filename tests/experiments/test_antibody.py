"""Scripts of the antibody experiment: what a whole domain is, the nearest gene, clones that are not split."""

import json

import numpy as np
import pytest

from tests.experiments.test_ssmd import ROOT, script

HEAVY = (
  "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYC"
  "AKDRGYFDYWGQGTLVTVSS"
)
LOOP = "AKDRGYFDY"
LIGHT = (
  "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQSGVPSRFSGSGSGTDFTLTISSLQPEDFATYYCQQSYSTPLT"
  "FGGGTKVEIK"
)


@pytest.fixture
def load(monkeypatch):
  """Scripts of the folder, which import each other."""
  monkeypatch.syspath_prepend(str(ROOT / "ssmd_antibody"))
  return lambda name: script(f"ssmd_antibody/{name}")


def test_a_domain_is_whole_with_its_conserved_residues_in_their_places(load):
  cdr3 = load("domains").cdr3
  assert cdr3(HEAVY) == LOOP
  first, last, tryptophan = HEAVY.index("C"), HEAVY.rindex("C"), HEAVY.index("WVRQ")
  for at in (first, tryptophan, last):
    assert cdr3(HEAVY[:at] + "S" + HEAVY[at + 1 :]) is None
  assert cdr3(HEAVY.replace("WGQG", "WSQG")) is None
  assert cdr3(HEAVY.replace("SSYAMS", "SS")) is None  # too near
  assert cdr3(HEAVY[:-6]) is None and cdr3("A" + HEAVY) == LOOP
  assert cdr3(LIGHT) is None and cdr3(LIGHT, heavy=False) == "QQSYSTPLT"
  assert cdr3(HEAVY, heavy=False) == LOOP and cdr3(LIGHT.replace("W", "S"), heavy=False) is None


def plain_edits(chain, gene):
  """The definition: the least over beginnings of the chain, each by the usual table."""
  row = list(range(len(chain) + 1))
  for i, g in enumerate(gene):
    new = [i + 1]
    for j, c in enumerate(chain):
      new.append(min(row[j] + (g != c), row[j + 1] + 1, new[j] + 1))
    row = new
  return min(row)


def test_edits_are_those_of_the_table_filled_in_one_by_one(load):
  rng = np.random.default_rng(0)
  draw = lambda most: "".join(rng.choice(list("ACDE"), rng.integers(1, most)))
  chains, genes = [draw(20) for _ in range(60)], [draw(12) for _ in range(60)]
  expected = [plain_edits(a, b) for a, b in zip(chains, genes, strict=True)]
  assert load("domains").edits(chains, genes).tolist() == expected


def test_the_nearest_gene_and_its_identity(load, tmp_path):
  domains = load("domains")
  v = HEAVY[: HEAVY.rindex("C") + 1]
  gapped = (v[:9] + "-" + v[9:]).ljust(103, "-")[:103] + "C"
  other = {"IGHV9-9*01": "Q" * 103 + "C", "IGHV8-8*01": "A" * 104}
  genes = {"V": {"H": {"human": {"IGHV3-23*01": gapped} | other}}}
  (tmp_path / "germlines.py").write_text(f"all_germlines = {genes}\n")
  found = domains.read_germlines(tmp_path / "germlines.py", ["human"])
  assert list(found) == ["IGHV3-23*01", "IGHV9-9*01"]  # one ends in no cysteine
  assert found["IGHV3-23*01"] == v + "C"
  ((name, identity),) = domains.nearest([HEAVY.replace("SSYAMS", "SSYWMS")], found)
  assert name == "IGHV3-23*01"
  np.testing.assert_allclose(identity, 1 - 2 / (len(v) + 1))  # W for A, and the second cysteine


def test_no_clone_is_on_two_sides(load, tmp_path, monkeypatch):
  """Loops of ten residues: two places apart are one clone with the same gene, three are not."""
  split = load("split")
  chain = lambda kind, loop, gene="V1": split.Chain("", kind, "", loop, gene)
  chains = [
    chain("human", "ARDYYYYYDY"),
    chain("human", "ARDYYYYWWY"),  # two places from the first
    chain("human", "ARDYYYWWWW"),  # two from the second: closed under it
    chain("human", "ARDYYYYYWW", "V2"),  # another gene
    chain("human", "ARDYYYYYDY", "V3"),  # the same loop
    chain("mouse", "AAAAAAAAAA"),
    chain("mouse", "AAAAAAAAAC"),
    chain("human", "GGGGGGGGGG"),
    chain("therapeutic", "GGGGGGGGGA"),
    chain("human", "ARDYYYYYD"),  # another length
  ]
  cluster = split.clusters(chains)
  assert cluster == [0, 0, 0, 3, 0, 5, 5, 7, 7, 9]
  for seed in range(5):
    parts = split.split(chains, cluster, 1, seed)
    of = {i: name for name, part in parts.items() for i in part}
    assert len(of) == sum(map(len, parts.values()))
    assert len({of[i] for i in (0, 1, 2, 4)}) == 1 and parts["therapeutic"] == [8]
    assert (
      7 not in of and parts["train"] and ((5 in of) + (6 in of), of.get(5, "train")) == (1, "train")
    )


def test_the_record_says_how_many(load, tmp_path):
  """Two chains of one clone and one of another kind, through the whole script."""
  v = HEAVY[: HEAVY.rindex("C") + 1]
  genes = {"V": {"H": {"human": {"IGHV3-23*01": v[:-1].ljust(103, "-") + "C"}, "mouse": {}}}}
  (tmp_path / "germlines.py").write_text(f"all_germlines = {genes}\n")
  records = {"human": ["H", "H", "K"], "mouse": ["H"], "therapeutic": ["H"]}
  for kind, types in records.items():
    loop = {"human": LOOP, "mouse": "ARGGGGG", "therapeutic": "ARWWWWWWWW"}[kind]
    body = HEAVY.replace(LOOP, loop)
    text = "".join(f">{kind}{i}|chain={x}|len=1\n{body}\n" for i, x in enumerate(types))
    (tmp_path / f"{kind}.fasta").write_text(text)
  flags = [f"--{kind}={tmp_path / kind}.fasta" for kind in records]
  flags += [f"--germlines={tmp_path / 'germlines.py'}", f"--out={tmp_path}", "--held_out=1"]
  assert load("split").main([*flags, f"--record={tmp_path / 'split.jsonl'}"]) == 0
  lines = {x["part"]: x for x in map(json.loads, (tmp_path / "split.jsonl").open())}
  assert {name: x["chains"] for name, x in lines.items()} == {
    "train": 1, "valid": 2, "test": 0, "therapeutic": 1,
  }  # fmt: skip
  assert lines["valid"]["clusters"] == 1
  assert f"human0|human|IGHV3-23|{LOOP}\n{HEAVY}" in (tmp_path / "valid.fasta").read_text()
