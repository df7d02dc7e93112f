"""A task of a job, from start to exit, with any engine.

In order:

1. `options.py`, `context.py`: the caller's options; what the task is and has.
2. `roles.py`: the events for the launcher, what chief, worker, evaluator and parameter server do, and the exit.
3. `backend.py`: what they need from an engine. `failures.py`: reports of failures, such as a loss of NaN.
4. `startup.py`: the lock on the model directory, the checkpoint to resume from, the other tasks.
5. `rendezvous/`: tasks find each other through files in the model directory, and compare their jobs.
6. `multi_step.py`: lengths of multi-step calls; `training_files.py`: files that change while they are read.
7. `evaluation.py`, `exporting.py`: evaluations and exports of checkpoints, during or after training.
8. `stopping/`: after a signal, a lost peer or the end of the data, all stop after the same step, with a checkpoint.
9. `rendezvous/result_exchange.py`, `result.py`: the same result on every task.
10. `stopping/shutdown.py`: the last status, and the exit code.

`engines/model_dir` handles the files of the model directory.
"""
