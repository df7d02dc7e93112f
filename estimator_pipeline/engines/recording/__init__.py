"""What a training writes down of itself: step records for `parity`, the ledger's blocks, its environment, its pace.

Reading them is elsewhere: `parity`, `inputs/ledger`.
"""
