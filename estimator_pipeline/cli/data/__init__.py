"""The commands for data, one per file: `partition`, `index`, `inspect`.

They parse arguments and print results. The package `inputs` reads the data and the ledger.
"""
