"""Where a run's numbers and samples go: metrics.jsonl always, and the writers that the config names."""
