"""Samplers behind one interface, reveal rules, token choice, and the driver around them."""
