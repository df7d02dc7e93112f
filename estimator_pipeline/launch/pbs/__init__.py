"""PBS: the batch script of a job file, the starter of its tasks, and the commands for submitted jobs."""
