"""The sections of a job file as pydantic models, one per file.

`job/schema.py` checks for conflicts between sections; `job/error_messages.py` formats the messages.
"""
