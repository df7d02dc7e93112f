"""To be written: what is in here, and what is not."""
