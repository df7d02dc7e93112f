"""General helpers: files, text, plain values, lazy imports.

Of this package they import only `errors`.
"""
