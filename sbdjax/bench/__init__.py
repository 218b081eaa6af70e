"""Wall-clock measurements."""
