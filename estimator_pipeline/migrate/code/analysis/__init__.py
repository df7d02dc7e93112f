"""What a program consists of: files, syntax trees, names, constructs, and edits of its text.

Nothing is judged here: what becomes of a construct is in `migrate/code/catalogue`.
"""
