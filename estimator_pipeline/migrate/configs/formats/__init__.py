"""The supported formats, one per file. Each converts its fields; `migrate/configs/convert.py` builds the job file."""
