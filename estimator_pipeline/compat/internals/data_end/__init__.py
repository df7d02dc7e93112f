"""How synchronous workers end together when the data of one of them end first.

Batches and the last common step; the patches that use them are in `compat/patches`.
"""
