"""Likelihoods of masked models: exact given an order, and bounds over orders."""
