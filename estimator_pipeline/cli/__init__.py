"""The command line: one file a subcommand, listed in `main.py`; those for data, scheduled jobs and `migrate` in rooms of
their own."""
