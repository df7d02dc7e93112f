"""The error codes, with the meaning of each and what to do.

A code never changes its meaning, and a removed code is never reused. `estimator-pipeline explain CODE` prints an entry;
`tools/error_codes.py` writes docs/reference/errors.md from this table.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AREAS", "CODES", "Code"]


class Code(NamedTuple):
    """The meaning of an error code, and what to do."""

    meaning: str
    action: str


AREAS = {
    "argument": "Options of the command line and arguments of functions",
    "cluster": "TF_CONFIG, tasks and communication between tasks",
    "data": "Data and input functions",
    "environment": "Environment variables",
    "file": "Files and folders, except data and checkpoints",
    "job": "Job files, and the functions and files that they name",
    "jobs": "Submitted jobs",
    "kubernetes": "Kubernetes manifests",
    "launch": "Starting processes",
    "migrate": "Moving programs, checkpoints and exports to Keras",
    "model": "Models, optimizers and labels",
    "model-dir": "Checkpoints and the model directory",
    "parity": "Comparing two runs",
    "scheduler": "Commands of Slurm and PBS, and kubectl",
    "strategy": "Distribution strategies",
    "system": "Disks and resource limits",
    "tensorflow": "TensorFlow, Keras and tensorflow-estimator",
    "training": "Running training",
}
"""Description of each area, by the first part of a code."""

CODES = {
    "argument/bad-value": Code(
        "An option or argument has a value that is not allowed.",
        "Use one of the allowed values, which the message lists.",
    ),
    "argument/conflict": Code(
        "Two options or arguments exclude each other.",
        "Remove one of them.",
    ),
    "argument/missing": Code(
        "A required option or argument is missing.",
        "Add it; the message lists what it accepts.",
    ),
    "argument/not-applicable": Code(
        "An option or argument does not apply to this command, such as --set without a job file.",
        "Remove it, or add the option or file that it requires.",
    ),
    "argument/unknown-name": Code(
        "The name of an option, metric, loss, engine or check is unknown.",
        "Check the spelling against the names in the message.",
    ),
    "cluster/bad-address": Code(
        "An address in a cluster is not HOST:PORT, or two tasks have the same one.",
        "Correct the address in TF_CONFIG or in the job file.",
    ),
    "cluster/bad-tf-config": Code(
        "TF_CONFIG is not JSON, or does not describe a cluster and a task of it.",
        "Correct the key that the message names; docs/reference/tf_config.md lists the allowed values.",
    ),
    "cluster/contradiction": Code(
        "The scheduler's variables contradict each other: duplicate ranks, different sizes, more tasks than nodes.",
        "Start each task once, with the scheduler's launcher, and do not set its variables manually.",
    ),
    "cluster/different-jobs": Code(
        "The tasks of one cluster were started with different jobs, such as a different learning rate or model_dir.",
        "Start all tasks with the same job file and the same options; the message lists the differences.",
    ),
    "cluster/folder-not-shared": Code(
        "The tasks need one shared folder, and each task sees a different one.",
        "Put run.model_dir on a file system that all machines share.",
    ),
    "cluster/no-ports": Code(
        "No free ports could be found for the tasks, or the tasks could not agree on them.",
        "Set the ports in TF_CONFIG, or give the tasks a shared folder through which they can agree.",
    ),
    "cluster/not-started": Code(
        "The cluster has several tasks, and this process was not started as one of them.",
        "Start the program with the scheduler (srun, mpirun, an Indexed Job) or with `estimator-pipeline launch`.",
    ),
    "cluster/peer-failed": Code(
        "A different task failed, and this task stopped because of it.",
        "Read the log of the task that the message names; this task is not the cause.",
    ),
    "cluster/peer-lost": Code(
        "Connection to a different task was lost: its server no longer answers.",
        "Read the logs of that task and its node. Start the job again to resume from the last checkpoint.",
    ),
    "cluster/port-in-use": Code(
        "The port of this task is in use by a different process.",
        "Stop the process that uses it, choose a different port in TF_CONFIG, or set cluster.ports: agreed.",
    ),
    "cluster/timeout": Code(
        "A wait for a different task or process timed out.",
        "The message names the awaited event and the timeout. Read that task's log, and docs/guides/operating.md.",
    ),
    "cluster/unknown-task": Code(
        "The cluster has no task of this type and index.",
        "Correct the task's type or index; indices start at 0.",
    ),
    "data/bad-feature": Code(
        "A feature has an unexpected type, shape or length, or differs between training and evaluation.",
        "Make the data consistent; for TFRecord files correct the spec of the feature.",
    ),
    "data/bad-input-fn": Code(
        "An input function cannot be called, or its return value cannot be trained on.",
        "Return a tf.data.Dataset of (features, labels); add a parameter input_context if there are several workers.",
    ),
    "data/bad-record": Code(
        "A record cannot be decoded: a line with a wrong number of cells, or text instead of a number.",
        "Correct the record at the place that the message names, or the columns or spec that describe it.",
    ),
    "data/cannot-shard": Code(
        "The records or files cannot be sharded across the workers as configured.",
        "Choose a batch size divisible by the number of replicas, more files, or a different shard_policy.",
    ),
    "data/empty": Code(
        "The data has no records, or no features.",
        "Check the path, the split and the filter of the data.",
    ),
    "data/endless": Code(
        "The dataset is infinite, but is read to its end, as in an evaluation.",
        "Set eval.steps, or do not repeat the dataset in evaluation.",
    ),
    "data/missing-feature": Code(
        "The data has no feature, column or array of the configured name.",
        "Check the spelling against the names in the message.",
    ),
    "data/not-finite": Code(
        "A feature, label or weight is NaN or infinite, with which training diverges.",
        "Correct or remove the record at the place that the message names.",
    ),
    "data/not-found": Code(
        "A data file, a data set or a split does not exist.",
        "Check the path or the name; prepare a TensorFlow Datasets data set before the job.",
    ),
    "data/unknown-id": Code(
        "An id is negative, or not below the number of ids of the model.",
        "Correct the records, or give the model more ids.",
    ),
    "data/unreadable": Code(
        "A data file or its index is damaged, or changed while it was read.",
        "Write the file again; delete an index (.idx) that does not belong to its file.",
    ),
    "environment/bad-value": Code(
        "An environment variable has a value that is not allowed.",
        "Correct or unset the variable; the message lists the allowed values.",
    ),
    "file/bad-format": Code(
        "A file does not have the expected format.",
        "Correct it at the location in the message.",
    ),
    "file/exists": Code(
        "The output file or folder exists already.",
        "Choose a different path, or remove the existing one.",
    ),
    "file/not-found": Code(
        "A file or folder does not exist.",
        "Check the path; relative paths start at the working directory.",
    ),
    "file/unreadable": Code(
        "A file cannot be read: no permission, not text, too large, or a disk error.",
        "Correct the permission or the path.",
    ),
    "file/unwritable": Code(
        "A file or folder cannot be written.",
        "Choose a writable path, or correct the permission.",
    ),
    "job/bad-function": Code(
        "A function that the job or an option names cannot be loaded, or raises.",
        "Correct the reference (module:function or file.py:function) or the code at the location in the message.",
    ),
    "job/bad-override": Code(
        "A --set option does not match the job file.",
        "Write --set section.field=value, with the value in YAML.",
    ),
    "job/bad-value": Code(
        "A field of the job file has a value that is not allowed.",
        "Use one of the allowed values, which the message lists.",
    ),
    "job/conflict": Code(
        "Fields of the job file contradict each other, or the job cannot run with the existing files.",
        "Change one of the fields that the message names.",
    ),
    "job/missing-field": Code(
        "The job file lacks a required field or section.",
        "Add it where the message indicates.",
    ),
    "job/not-yaml": Code(
        "The job file is not YAML, or not a mapping of sections.",
        "Correct the line that the message names; indent with spaces.",
    ),
    "job/several-mistakes": Code(
        "The job file has several mistakes. The message lists them, each with its code.",
        "Correct all of them.",
    ),
    "job/unknown-field": Code(
        "The job file has a field that does not exist.",
        "Check the spelling against the names in the message, and that the field is in the right section.",
    ),
    "job/wrong-type": Code(
        "A field of the job file has a value of the wrong type, such as text instead of a number.",
        "Write the value in the form that the message shows; numbers without quotes.",
    ),
    "jobs/exists": Code(
        "A job of that name or of that model directory exists already. Nothing was submitted.",
        "Wait for the existing job or delete it (the message has the command), or submit under a different name.",
    ),
    "jobs/not-found": Code(
        "There is no submitted job, task or array element of that name, or none that failed.",
        "List the submitted jobs with `estimator-pipeline status`.",
    ),
    "kubernetes/bad-name": Code(
        "A name is not valid in Kubernetes: too long, or with characters other than a-z, 0-9 and -.",
        "Choose a valid name with --name.",
    ),
    "kubernetes/no-volume": Code(
        "run.model_dir is not in a volume, so checkpoints would be lost with the pod.",
        "Mount a volume there (kubernetes.volumes), or use a model_dir in an object store.",
    ),
    "launch/cannot-start": Code(
        "A process could not be started: the program does not exist, is not executable, or a limit is reached.",
        "Check the command; `ulimit -u` shows how many processes are allowed.",
    ),
    "migrate/bad-checkpoint": Code(
        "The checkpoint to migrate cannot be read, or is incomplete.",
        "Name a complete checkpoint: a model directory, or a prefix such as model.ckpt-1000.",
    ),
    "migrate/bad-export": Code(
        "The SavedModel to migrate cannot be read, or was not exported by an Estimator.",
        "Name the folder that holds saved_model.pb.",
    ),
    "migrate/failed": Code(
        "The migration did not finish, or its output differs from its input when read back.",
        "Read the details in the message. No partial output is left.",
    ),
    "migrate/mismatch": Code(
        "The old and the new model do not match: variables, signatures or outputs differ.",
        "Use the mapping or the option that the message names, or correct the Keras model.",
    ),
    "migrate/outdated-conversion": Code(
        "A program that an earlier version converted imports a module that was removed.",
        "Convert it again from the original program, or run the original with `estimator-pipeline exec`.",
    ),
    "migrate/unknown-format": Code(
        "The format of the configuration is unknown or ambiguous.",
        "Name the format with --format.",
    ),
    "model/bad-function": Code(
        "A function that builds a model has a wrong signature or return value, or nothing in the model is trainable.",
        "Correct the function as the message describes; docs/guides/model_fn.md has an example of each kind.",
    ),
    "model/bad-keras-file": Code(
        "A .keras file cannot be read, written or loaded.",
        "Pass the custom classes that it needs, or write it with the Keras version that reads it.",
    ),
    "model/bad-optimizer": Code(
        "The optimizer cannot be built, or cannot train here.",
        "Correct its name or options; the message lists the allowed ones.",
    ),
    "model/features-mismatch": Code(
        "The features of the data do not match the inputs of the model.",
        "Rename the inputs to the features' names, or select the features that the model takes.",
    ),
    "model/labels-mismatch": Code(
        "The labels or example weights do not match the model's output or loss.",
        "Use one unit per class, labels from 0, or a label_vocabulary.",
    ),
    "model-dir/damaged": Code(
        "The training state in the model directory is lost: checkpoints are missing or cannot be restored.",
        "Restore the files; to start over, name an empty model directory.",
    ),
    "model-dir/in-use": Code(
        "A different job trains in the same model directory, or has taken it over.",
        "Stop one of the two jobs, or give it a separate model directory.",
    ),
    "model-dir/nothing-to-train": Code(
        "Training has reached its last step already.",
        "Increase train.max_steps or train.epochs, name new files with --continue-with, or use a different model_dir.",
    ),
    "model-dir/other-model": Code(
        "The checkpoint belongs to a different model, optimizer or engine.",
        "Use the model that it was trained with, or name a different model directory.",
    ),
    "model-dir/other-run": Code(
        "The data, batch size, seed or optimizer differ from those of the run in this model directory.",
        "Restore the values, allow the change with --accept-changes, or name a different model directory.",
    ),
    "parity/bad-record": Code(
        "The recorded steps of a run cannot be read.",
        "Record the run again, in an empty folder.",
    ),
    "parity/no-counterpart": Code(
        "A variable, metric or output of one side has no counterpart on the other.",
        "Map the names with the option that the message names.",
    ),
    "parity/not-comparable": Code(
        "The two runs cannot be compared step by step: training is asynchronous, or no seed fixes the data order.",
        "Compare with the setting that the message names.",
    ),
    "parity/run-failed": Code(
        "One of the runs to compare failed.",
        "Read its log, which the message names.",
    ),
    "scheduler/refused": Code(
        "Slurm, PBS or Kubernetes rejected the request.",
        "Correct the option that their answer in the message names.",
    ),
    "scheduler/unavailable": Code(
        "A command of Slurm or PBS, or kubectl, is not installed or does not answer.",
        "Use a machine that has it (a login node), or try again later.",
    ),
    "strategy/not-possible": Code(
        "The distribution strategy cannot run in this cluster or on these devices.",
        "Choose the strategy that the message names.",
    ),
    "system/disk": Code(
        "A disk or file server is full, read-only or failing.",
        "Free space or correct the mount. The same command resumes from the last checkpoint.",
    ),
    "system/limit": Code(
        "The process reached its limit of memory, threads or address space.",
        "Raise the limit that the message names (ulimit, the scheduler's memory), or use a smaller batch.",
    ),
    "tensorflow/not-installed": Code(
        "A required package is not installed in this Python.",
        "Install it with the command in the message.",
    ),
    "tensorflow/removed-name": Code(
        "The program uses a name that newer versions of TensorFlow have removed, and that has no replacement.",
        "Write what the message advises; `estimator-pipeline migrate scan` finds all such names.",
    ),
    "tensorflow/unsupported-version": Code(
        "This version of TensorFlow does not support the requested operation.",
        "Install TensorFlow 2.15 to 2.21.",
    ),
    "tensorflow/wrong-keras": Code(
        "The wrong Keras is loaded or installed: tf.estimator needs Keras 2 (tf-keras), keras3 needs Keras 3.",
        "Call compat.install() before tf.keras is used; install the tf-keras of TensorFlow's version.",
    ),
    "training/diverged": Code(
        "The loss or a weight is NaN or infinite.",
        "Lower the learning rate, clip gradients, or look for bad records. A retry without changes diverges again.",
    ),
    "training/ended-early": Code(
        "The program exited before training finished.",
        "Remove the call of sys.exit from the program's functions.",
    ),
    "training/evaluation-failed": Code(
        "An evaluation failed.",
        "Read the details in the message. Training is saved in its checkpoint.",
    ),
    "training/no-checkpoint": Code(
        "Training ended without a checkpoint, so there is no model to evaluate.",
        "Save checkpoints (train.save_checkpoints_steps), or train for more steps.",
    ),
    "training/preempted": Code(
        "The task was stopped (SIGTERM, Ctrl-C, the scheduler), and training is saved in a checkpoint.",
        "Run the same command again: training resumes from that checkpoint.",
    ),
    "training/unsupported": Code(
        "This engine or this environment does not support the request.",
        "Choose the engine or the setting that the message names.",
    ),
}
"""Each code and its entry, sorted."""
