"""The commands for jobs of a scheduler: `submit`, `status`, `logs`, `stacks`, `cancel`, one a file.

They read arguments and print results. Schedulers are in `launch`.
"""
