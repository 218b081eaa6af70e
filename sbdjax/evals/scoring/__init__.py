"""Log-likelihoods of continuations: exact of next-token models, a bound of the others."""
