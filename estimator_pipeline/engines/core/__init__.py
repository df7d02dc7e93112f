"""A task of a job, from start to exit, with any engine.

In order:

1. `options.py`, `context.py`: the caller's options; what the task is and has.
2. `task.py`: the events for the launcher, the choice of the role, and the exit. `failures.py`: reports of failures.
3. `roles.py`: what chief, worker, evaluator and parameter server do. `backend.py`: what they need from an engine.
4. `startup.py`: the lock on the model directory, the checkpoint to resume from, the other tasks.
5. `rendezvous/`: tasks find each other through files in the model directory, and compare their jobs.
6. `multi_step.py`, `step_schedule.py`: lengths of multi-step calls; `even_batches.py`: an equal number of batches per
   replica; `divergence.py`: the error of a NaN or infinite loss.
7. `evaluation.py`, `exporting.py`: evaluations and exports of checkpoints, during or after training.
8. `stopping/`: after a signal, a lost peer or the end of the data, all stop after the same step, with a checkpoint.
9. `rendezvous/result_exchange.py`, `result.py`: the same result on every task.
10. `stopping/shutdown.py`: the last status, and the exit code.

`engines/model_dir` handles the files of the model directory.
"""
