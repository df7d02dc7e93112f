"""What runs in a task from its start to its end, in every engine. In order:

1. `settings.py`: what the caller asked for.
2. `startup.py`: the lock of the model directory, the checkpoint to go on from, the other tasks.
3. `rendezvous/`: tasks find each other by files in the model directory, and compare their jobs.
4. `task.py`: the role: chief, worker, evaluator or parameter server; training by the engine. `divergence.py`: its end
   where the loss is no number.
5. `step_schedule.py`, `even_batches.py`: which steps somebody wants to see; batches for all replicas.
6. `evaluator.py`: evaluations and exports of checkpoints, beside training or after it.
7. `stopping/`: a signal, a lost peer, the end of the data: all stop after the same step, with a checkpoint.
8. `rendezvous/result_exchange.py`, `result.py`: the same result on every task.
9. `stopping/shutdown.py`: what is said last, and the exit code.

The engines are `engines/estimator`, `engines/keras` and `engines/keras3`; files of the model directory are in
`engines/model_dir`.
"""
