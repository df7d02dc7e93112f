"""The command line: one file a subcommand, listed in `main.py`."""
