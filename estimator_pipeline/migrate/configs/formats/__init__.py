"""The formats that are read, one a file. What becomes of their fields is decided in `migrate/configs/convert.py`."""
