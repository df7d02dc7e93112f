"""The command line: one file a subcommand, listed in `main.py`.

`data`, `submit` and `migrate` have those about data, about scheduled jobs and about the way to Keras.
"""
