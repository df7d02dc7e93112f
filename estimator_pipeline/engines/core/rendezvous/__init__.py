"""How the tasks of one run find each other and agree: files in the model directory, or the chief's server.

`cluster` defines addresses and roles; `progress` has the events for the launcher.
"""
