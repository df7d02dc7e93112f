"""The common end of synchronous workers when the data of one of them ends, and even batches.

The patches that use them are in `compat/patches`.
"""
