"""The commands for data: `partition`, `index`, `inspect`, one a file.

They read arguments and print results. What they print is made in `inputs`, where the data are read and the ledger is.
"""
