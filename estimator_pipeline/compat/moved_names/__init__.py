"""Names of TensorFlow 1.15 that moved or went: where they are today, and what to write instead.

The table `moved_names.txt` is written by `tools/moved_names`. Import paths of the estimator package are in
`compat/bootstrap`.
"""
