"""Training code of the digit service: `python -m digit_service.train --help`."""

__version__ = '1.4.2'
