"""How the tasks of one run find each other and agree: files in the model directory, or the chief's server.

Addresses and roles come from `cluster`. What a launcher hears of a task is in `progress`.
"""
