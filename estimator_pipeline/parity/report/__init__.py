"""The report of a comparison as one HTML page. The text for terminals is `parity/text.py`."""
