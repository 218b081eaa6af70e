"""Run by test_hosts in each process of a job: several small trainings, one after the other."""

import json
import sys

from sbdjax.train.build import train

if __name__ == "__main__":
  _, path = sys.argv
  with open(path) as file:
    runs = json.load(file)
  for workdir, config in runs:
    train(config, workdir)
