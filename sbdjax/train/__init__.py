"""Training: state, optimiser, pure steps, device layouts, checkpoints, metrics and the loop."""
