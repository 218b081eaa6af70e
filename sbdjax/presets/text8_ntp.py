"""Next-token prediction on text8: the autoregressive reference of the text8 curves.

  python -m sbdjax train --config=preset:text8_ntp --workdir=runs/text8_ntp
  python -m sbdjax train --config=preset:text8_ntp:cpu --workdir=runs/text8_ntp_cpu

Full size as in the literature (D3PM, SEDD, MD4): 12 layers, width 768, 12 heads, 256 characters a
row, 512 rows per batch, 1M steps, 90M / 5M / 5M characters. Published: 1.23 bits per character for
the autoregressive transformer of this size (MD4, Table 2). `:cpu` is a small model whose loss
falls visibly within minutes on two cores.
"""

from typing import Any

from ml_collections import ConfigDict

from sbdjax.presets import Variants

# 27 characters and the mask token, which SBD and masked diffusion need and NTP never sees.
MODEL = dict(vocab_size=28, mask_id=27, norm_eps=1e-6, tie_embeddings=False)

VARIANTS: Variants[dict[str, Any]] = Variants(
  {
    "full": dict(
      model=dict(
        num_layers=12,
        d_model=768,
        num_heads=12,
        num_kv_heads=12,
        d_ff=2048,
        max_seq_len=256,
        compute_dtype="bfloat16",
      ),
      optim=dict(learning_rate=5e-4, warmup_steps=2000, weight_decay=0.03, b2=0.999),
      train=dict(
        steps=1_000_000,
        batch_size=512,
        ema_decay=0.9999,
        log_every=100,
        eval_every=5000,
        eval_batches=100,
        checkpoint_every=5000,
      ),
      seq_len=256,
    ),
    "cpu": dict(
      model=dict(num_layers=3, d_model=128, num_heads=4, num_kv_heads=4, d_ff=344, max_seq_len=256),
      optim=dict(learning_rate=2e-3, warmup_steps=50, weight_decay=0.03, b2=0.98),
      train=dict(
        steps=600,
        batch_size=16,
        log_every=20,
        eval_every=100,
        eval_batches=16,
        checkpoint_every=200,
      ),
      seq_len=128,
    ),
  }
)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  parts = VARIANTS[variant]
  return ConfigDict(
    dict(
      model=dict(**MODEL, **parts["model"]),
      data=dict(
        source="text8",
        tokenizer="text8",
        add_bos=False,
        packing="concat",
        seq_len=parts["seq_len"],
      ),
      loss=dict(name="ntp"),
      optim=dict(schedule="cosine", final_fraction=0.0, clip_norm=1.0, **parts["optim"]),
      train=dict(seed=0, **parts["train"]),
      parallel=dict(mode="mesh"),
    )
  )
