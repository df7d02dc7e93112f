"""The folder on PYTHONPATH of child processes of a program under `exec`; see `sitecustomize.py`."""
