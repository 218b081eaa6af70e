"""Self-speculative masked diffusion on OpenWebText, among the full-size runs.

  python -m sbdjax train --config=configs/ssmd_owt.py --workdir=runs/owt_ssmd
  python -m sbdjax train --config=configs/ssmd_owt.py --dry_run=v5p:2x2x2

Another name of configs/owt_ssmd.py.
"""

from configs.owt_ssmd import get_config

__all__ = ["get_config"]
