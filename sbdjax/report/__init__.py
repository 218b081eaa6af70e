"""Records as one page that opens in a browser without a network, and as Markdown and LaTeX tables.

`read` finds the records of any sweeps, runs and evaluations, `rows` says what of them can be compared,
`tables` writes that down, `page` embeds all of it in one HTML file. Nothing here starts JAX.
"""
