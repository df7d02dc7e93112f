"""A folder on the PYTHONPATH of processes that a program under `exec` starts; see `sitecustomize.py`."""
