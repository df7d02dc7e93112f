"""Recording of a training: step records for `parity`, blocks of the ledger, environment, pace of the workers.

`parity` and `inputs/ledger` read them.
"""
