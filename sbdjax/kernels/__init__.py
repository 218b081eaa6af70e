"""Attention backends: each turns a mask rule into a plan once per forward, and attends by it.

backend                     the backends by name, and how a device's kernels make one
xla                         plain XLA, any device
tile_map, flash, decode     what the kernels of all devices share: the tiles that have to be
                            computed, flash attention's gradient, windows over a cache
tpu, tpu_*                  kernels for TPU
gpu, gpu_*                  kernels for Hopper GPUs
parts, sharded              keys in parts of a cache; kernels on a mesh
"""
