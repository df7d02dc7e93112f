"""Conversion of programs of several files (linked, converted as one file, split), and the scan's rule."""
