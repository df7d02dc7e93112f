"""Batch jobs: what Slurm and PBS share.

A submission has a folder with the script, the job file, `submission.json` and logs:

    output.log             output of the script and the supervisor, over all requeues
    run-0/task-1.log       output of the task of rank 1 in the first run; run-1 is the run after a requeue
    run-0/attempt-1/...    files of the supervisor: progress of the tasks, and its history
    3/output.log, ...      of an array: the same for each element
"""
