"""Kubernetes: manifests of a job file, and jobs by `kubectl`.

Manifests are pure functions of the job (`manifests.py`, `pods.py`); only `kubectl.py` and `logs.py` start kubectl. The
command line is in `cli/submit`.
"""
