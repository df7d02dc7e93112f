"""The sections of a job file, one a file, as pydantic models.

What only shows when sections are seen together is checked in `job/schema.py`; messages are made in
`job/error_messages.py`.
"""
