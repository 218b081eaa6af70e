"""The same mathematics once more, in plain numpy and float64, importing nothing of the package.

Written from the papers (and, for the network, from the published Llama and Qwen definitions), slow
and literal on purpose: what the tests compare the package with.
"""
