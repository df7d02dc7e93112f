"""Analysis of a program: source files, syntax trees, name resolution, constructs, and text edits.

The replacement of a construct is in `migrate/code/catalogue`.
"""
