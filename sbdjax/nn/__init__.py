"""The network: rotary positions, grouped-query attention, the scanned transformer."""
