"""The command line: one file for each subcommand, listed in `main.py`.

`data`, `submit` and `migrate` hold the commands for data, for scheduled jobs and for the migration to Keras.
"""
