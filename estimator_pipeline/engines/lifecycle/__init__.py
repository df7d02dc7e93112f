"""The lifecycle of a task, from start to exit, in every engine.

In order:

1. `settings.py`: the caller's options.
2. `startup.py`: the lock on the model directory, the checkpoint to resume from, the other tasks.
3. `rendezvous/`: tasks find each other through files in the model directory, and compare their jobs.
4. `task.py`: the role (chief, worker, evaluator or parameter server); training by the engine. `divergence.py`: the
   error of a NaN or infinite loss.
5. `step_schedule.py`, `even_batches.py`: lengths of multi-step calls; an equal number of batches per replica.
6. `evaluator.py`: evaluations and exports of checkpoints, during or after training.
7. `stopping/`: after a signal, a lost peer or the end of the data, all stop after the same step, with a checkpoint.
8. `rendezvous/result_exchange.py`, `result.py`: the same result on every task.
9. `stopping/shutdown.py`: the last status, and the exit code.

The engines are `engines/estimator`, `engines/keras` and `engines/keras3`; `engines/model_dir` handles the files of the
model directory.
"""
