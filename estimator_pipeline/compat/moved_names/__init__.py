"""Names of TensorFlow 1.15 that moved or were removed, with their new names or replacements.

The table `moved_names.txt` is written by `tools/moved_names`. Import paths of the estimator package are in
`compat/bootstrap`.
"""
