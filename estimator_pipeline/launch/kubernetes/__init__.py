"""Kubernetes: a job file as manifests, and the life of the job by `kubectl`.

Manifests are pure functions of the job (`manifests.py`, `pods.py`); only `kubectl.py` starts a process. The commands
are in `cli/submit`.
"""
