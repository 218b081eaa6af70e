r"""A causal block on top of the frozen AntiBERTy, which makes it self-speculative.

  python -m sbdjax train --config=preset:antibody_ssmd --workdir=runs/antibody_ssmd \
    --config.init.checkpoint=FOLDER --config.data.path=heavy.fasta
  python -m sbdjax train --config=preset:antibody_ssmd:cpu --workdir=runs/antibody_ssmd_cpu \
    --config.init.checkpoint=FOLDER --config.data.path=train.fasta --config.data.valid_path=valid.fasta

FOLDER is AntiBERTy (26M parameters, 8 blocks), converted once as docs/models.md says. Its weights stay as they are;
one more block of the same kind, causal, is trained, as on DPLM in section 5.3 of arXiv:2510.03929. A row is a whole
variable domain between its marks. `:cpu` is what experiments/ssmd_antibody ran on one core; full size is a longer run of
larger batches, whose numbers are our choice and have not been run.
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants, esm2_150m_ssmd

VARIANTS = Variants(
  {
    "full": {
      "data.seq_len": 160,
      "optim.name": "adamw",
      "optim.learning_rate": 1e-3,
      "optim.warmup_steps": 500,
      "train.steps": 50_000,
      "train.batch_size": 256,
      "train.eval_every": 1000,
      "train.checkpoint_every": 1000,
    },
    "cpu": {
      "data.seq_len": 136,
      "optim.name": "muon",
      "optim.learning_rate": 2e-2,
      "optim.warmup_steps": 30,
      "train.steps": 240,
      "train.batch_size": 8,
      "train.log_every": 20,
      "train.eval_every": 80,
      "train.eval_batches": 10,
      "train.checkpoint_every": 80,
    },
  }
)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  config = esm2_150m_ssmd.get_config("cpu" if variant == "cpu" else "full")
  config.init.checkpoint = "data/antiberty"
  config.data.path = "data/antibody.fasta"
  config.data.tokenizer = "checkpoint"
  config.update_from_flattened_dict(VARIANTS[variant])
  return config
