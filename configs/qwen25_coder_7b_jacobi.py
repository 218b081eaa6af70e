r"""Jacobi Forcing of Qwen2.5-Coder-7B-Instruct with the paper's settings (section 4.1).

  python -m sbdjax train --config=configs/qwen25_coder_7b_jacobi.py --workdir=runs/jacobi_7b \
    --config.init.checkpoint=/path/to/Qwen2.5-Coder-7B-Instruct \
    --config.data.tokenizer=/path/to/Qwen2.5-Coder-7B-Instruct \
    --config.prompts.path=/path/to/open_code_instruct.jsonl

Settings: sbdjax/presets/qwen25_coder_7b_jacobi.py. Copy this file for a config of your own.
"""

from sbdjax.presets import qwen25_coder_7b_jacobi as preset

get_rounds = preset.get_rounds


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
