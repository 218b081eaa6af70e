"""Losses: (lm, params, batch, key) -> (loss_sum, weight, metrics).

`batch` is a dict:
  tokens        int32 [B, L]
  weights       float32 [B, L], the loss weight of each token as a target (0: prompt, padding)
  positions     int32 [B, L]
  segment_ids   int32 [B, L], equal ids = one document, 0 = padding
  example_id    int32 [B], a global id; all randomness of a row derives from it

Sums and weights are added over devices and microbatches and divided once. `metrics` maps names to
(sum, weight) pairs that are reduced the same way.
"""
