"""Helpers without a subject: files, text, plain values, lazy imports. They import nothing of this package but
`errors`."""
