"""One module a verb: `python -m sbdjax VERB` calls `main(argv)` of `sbdjax.cli.VERB`."""
