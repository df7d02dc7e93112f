"""The commands for jobs of a scheduler: `submit`, `status`, `logs`, `stacks`, `cancel`, one a file.

They read arguments and print results. Scripts, manifests and states are made in `launch/slurm` and
`launch/kubernetes`.
"""
