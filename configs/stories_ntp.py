"""Next-token fine-tuning of stories260K with the budget of configs/stories_sbd.py: its baseline.

python -m sbdjax train --config=configs/stories_ntp.py --workdir=runs/ntp
"""

from ml_collections import ConfigDict

from configs import stories_sbd


def get_config(corpus: str = "raw") -> ConfigDict:
  config = stories_sbd.get_config(corpus)
  config.loss = ConfigDict(dict(name="ntp"))
  return config
