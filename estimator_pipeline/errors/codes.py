"""The code of each error: what it means, and what to do about it.

A code is given once and keeps its meaning; one that goes is not used again. `estimator-pipeline explain CODE` prints an
entry, and docs/reference/errors.md is written from this table by `tools/error_codes.py`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AREAS", "CODES", "Code"]


class Code(NamedTuple):
    """What an error of a code means, and what to do about it."""

    meaning: str
    action: str


AREAS = {
    "argument": "Options of the command line and arguments of functions",
    "cluster": "TF_CONFIG, tasks and what they need of one another",
    "data": "Data and input functions",
    "environment": "Environment variables",
    "file": "Files and folders, but for those of data and checkpoints",
    "job": "Job files, and what they name",
    "jobs": "Submitted jobs",
    "kubernetes": "Kubernetes manifests",
    "launch": "Starting processes",
    "migrate": "Moving programs, checkpoints and exports to Keras",
    "model": "Models, optimizers and labels",
    "model-dir": "Checkpoints and the folder of a run",
    "parity": "Comparing two runs",
    "scheduler": "Slurm's commands and kubectl",
    "strategy": "Distribution strategies",
    "system": "Disks and limits of the machine",
    "tensorflow": "TensorFlow, Keras and tensorflow-estimator",
    "training": "Training while it runs",
}
"""From the first part of a code to what its errors are about."""

CODES = {
    "argument/bad-value": Code(
        "An option or argument has a value that it cannot have.",
        "The message says which values are allowed; give one of them.",
    ),
    "argument/conflict": Code(
        "Two options or arguments were given that exclude each other.",
        "Leave one of them out.",
    ),
    "argument/missing": Code(
        "An option or argument that is needed was not given.",
        "Give it; the message says what it may be.",
    ),
    "argument/not-applicable": Code(
        "An option or argument was given that has no effect on what was asked, such as --set without a job file.",
        "Leave it out, or give what it belongs to.",
    ),
    "argument/unknown-name": Code(
        "A name was given that nothing has: of an option, a metric, a loss, an engine, a check.",
        "Check the spelling against the names in the message.",
    ),
    "cluster/bad-address": Code(
        "An address in a cluster is not HOST:PORT, or two tasks have the same one.",
        "Correct the address in TF_CONFIG or in the job file.",
    ),
    "cluster/bad-tf-config": Code(
        "TF_CONFIG is not JSON, or does not describe a cluster and a task of it.",
        "Correct the key that the message names; docs/reference/tf_config.md shows what may stand there.",
    ),
    "cluster/contradiction": Code(
        "What the scheduler's variables say contradicts itself: ranks twice, sizes that differ, more tasks than nodes.",
        "Start each task once, by the scheduler's own command, and do not set its variables by hand.",
    ),
    "cluster/different-jobs": Code(
        "The tasks of one cluster were started with different jobs: another learning rate, seed, batch or model_dir.",
        "Start all tasks with the same job file and the same options; the message says what differs.",
    ),
    "cluster/folder-not-shared": Code(
        "The tasks need one folder that all of them see, and each sees a different one.",
        "Put run.model_dir on a file system that all machines share.",
    ),
    "cluster/no-ports": Code(
        "No free ports could be found for the tasks, or the tasks could not agree on them.",
        "Name the ports in TF_CONFIG, or give the tasks a shared folder in which they can agree.",
    ),
    "cluster/not-started": Code(
        "The cluster has several tasks, and this process was not started as one of them.",
        "Start the program by the scheduler (srun, mpirun, an Indexed Job) or by `estimator-pipeline launch`.",
    ),
    "cluster/peer-failed": Code(
        "Another task failed, and this one ended because of it.",
        "Read the log of the task that the message names; this task is not the cause.",
    ),
    "cluster/peer-lost": Code(
        "Another task is gone: its server answered before and does not answer now.",
        "Read that task's log and its node's; start the job again to go on from the last checkpoint.",
    ),
    "cluster/port-in-use": Code(
        "The port of this task is taken by another process.",
        "Choose another port in TF_CONFIG, or end the process that has it.",
    ),
    "cluster/timeout": Code(
        "Something that another task or process should do did not happen in time.",
        "The message says what was waited for and how long; see that task's log, and docs/guides/operating.md.",
    ),
    "cluster/unknown-task": Code(
        "A task was named that the cluster does not have.",
        "Correct the task's type or index; indices begin with 0.",
    ),
    "data/bad-feature": Code(
        "A feature has another type, shape or length than it should have, or not the same in training and evaluation.",
        "Make the data of one form; for TFRecord files correct the spec of the feature.",
    ),
    "data/bad-input-fn": Code(
        "An input function cannot be called, or returns what cannot be trained on.",
        "Return a tf.data.Dataset of (features, labels); take input_context where the job has several workers.",
    ),
    "data/bad-record": Code(
        "A record cannot be decoded: a line with a wrong number of cells, a text where a number should be.",
        "Correct the record at the place that the message names, or the columns or spec that describe it.",
    ),
    "data/cannot-shard": Code(
        "The records or files cannot be shared by the workers as asked.",
        "Choose a batch that the replicas divide, more files, or another shard_policy.",
    ),
    "data/empty": Code(
        "The data hold no records, or no features.",
        "Check the path, the split and the filter of the data.",
    ),
    "data/endless": Code(
        "Data without an end were given where they are read to the end, as in an evaluation.",
        "Set eval.steps, or do not repeat the dataset in evaluation.",
    ),
    "data/missing-feature": Code(
        "The data have no feature, column or array of a name that is used.",
        "Check the spelling against the names in the message.",
    ),
    "data/not-found": Code(
        "A data file, a data set or a split does not exist.",
        "Check the path or the name; prepare a TensorFlow Datasets data set before the job.",
    ),
    "data/unreadable": Code(
        "A data file or its index is damaged, or changed while it was read.",
        "Write the file again; delete an index (.idx) that is not its file's.",
    ),
    "environment/bad-value": Code(
        "An environment variable has a value that it cannot have.",
        "Correct or unset the variable; the message says what it may be.",
    ),
    "file/bad-format": Code(
        "A file is not of the format that it should have.",
        "Correct it at the place that the message names.",
    ),
    "file/exists": Code(
        "A file or folder that would be written is there already.",
        "Choose another place, or remove what is there if nobody needs it.",
    ),
    "file/not-found": Code(
        "A file or folder does not exist.",
        "Check the path; relative paths begin at the current folder.",
    ),
    "file/unreadable": Code(
        "A file cannot be read: no permission, no text, too large, or its disk fails.",
        "Correct the permission or the path.",
    ),
    "file/unwritable": Code(
        "A file or folder cannot be written.",
        "Choose a place that can be written, or correct the permission.",
    ),
    "job/bad-function": Code(
        "A function that the job or an option names cannot be loaded, or raises.",
        "Correct the reference (module:function or file.py:function) or the code at the place that the message names.",
    ),
    "job/bad-override": Code(
        "A --set does not fit the job file.",
        "Write --set section.field=value, with the value in YAML.",
    ),
    "job/bad-value": Code(
        "A field of the job file has a value that it cannot have.",
        "The message says which values are allowed.",
    ),
    "job/conflict": Code(
        "Fields of the job file do not go together, or the job cannot work with what is there.",
        "Change one of the fields that the message names.",
    ),
    "job/missing-field": Code(
        "The job file lacks a field or a section that it needs.",
        "Add it; the message says where.",
    ),
    "job/not-yaml": Code(
        "The job file is not YAML, or not a mapping of sections.",
        "Correct the line that the message names; indent with spaces.",
    ),
    "job/several-mistakes": Code(
        "The job file has several mistakes, which the message lists, each with a code of its own.",
        "Correct them all.",
    ),
    "job/unknown-field": Code(
        "The job file has a field that does not exist.",
        "Check the spelling against the names in the message, and the section that it stands in.",
    ),
    "job/wrong-type": Code(
        "A field of the job file has a value of another type, such as a text for a number.",
        "Write the value as the message says; numbers without quotes.",
    ),
    "jobs/exists": Code(
        "A job of that name is there already, and nothing was submitted.",
        "Delete the old job (the message has the command), or submit under another name.",
    ),
    "jobs/not-found": Code(
        "There is no submitted job, task or array element of that name, or none that failed.",
        "Look at `estimator-pipeline status` for what there is.",
    ),
    "kubernetes/bad-name": Code(
        "A name cannot be a name in Kubernetes: too long, or with other characters than a-z, 0-9 and -.",
        "Give a different one with --name.",
    ),
    "kubernetes/no-volume": Code(
        "run.model_dir is in no volume, so that checkpoints would be gone with their pod.",
        "Mount a volume there (kubernetes.volumes), or use a model_dir in an object store.",
    ),
    "launch/cannot-start": Code(
        "A process could not be started: the program does not exist or may not be run, or a limit is reached.",
        "Check the command; `ulimit -u` shows how many processes are allowed.",
    ),
    "migrate/bad-checkpoint": Code(
        "The checkpoint to migrate cannot be read, or lacks a part of itself.",
        "Name a whole checkpoint: a model directory, or a prefix such as model.ckpt-1000.",
    ),
    "migrate/bad-export": Code(
        "The SavedModel to migrate cannot be read, or is not one that an Estimator has exported.",
        "Name the folder that holds saved_model.pb.",
    ),
    "migrate/failed": Code(
        "The migration did not come to its end, or what it wrote does not read back equal.",
        "Read what the message found; nothing half-written is left.",
    ),
    "migrate/mismatch": Code(
        "The old and the new model do not belong together: variables, signatures or answers differ.",
        "Give the mapping or the option that the message names, or correct the Keras model.",
    ),
    "migrate/unknown-format": Code(
        "The configuration is of no format that is known, or of several.",
        "Name the format with --format.",
    ),
    "model/bad-function": Code(
        "A function that builds a model takes or returns something else than it should, or nothing can be trained.",
        "Correct the function as the message says; docs/guides/model_fn.md shows one of each kind.",
    ),
    "model/bad-keras-file": Code(
        "A .keras file cannot be read, written or loaded.",
        "Give the classes that it needs, or write it with the Keras that reads it.",
    ),
    "model/bad-optimizer": Code(
        "The optimizer cannot be made, or cannot train here.",
        "Correct its name or options; the message says which there are.",
    ),
    "model/features-mismatch": Code(
        "The features of the data are not the inputs of the model.",
        "Name the inputs as the features are named, or choose the features that the model takes.",
    ),
    "model/labels-mismatch": Code(
        "The labels or weights of records do not fit the model's output or loss.",
        "Give as many units as classes, labels from 0 on, or a label_vocabulary.",
    ),
    "model-dir/damaged": Code(
        "The model directory does not say where training stands: its checkpoints are gone or cannot be restored.",
        "Put the files back; to start over, name an empty model directory.",
    ),
    "model-dir/in-use": Code(
        "Another job trains in the same model directory, or has taken it meanwhile.",
        "End one of the two jobs, or give it a model directory of its own.",
    ),
    "model-dir/nothing-to-train": Code(
        "Training has reached its last step already.",
        "Raise train.max_steps or train.epochs, or name another model directory.",
    ),
    "model-dir/other-model": Code(
        "The checkpoint is of another model, optimizer or engine than the job's.",
        "Give the model that it was trained with, or name another model directory.",
    ),
    "model-dir/other-run": Code(
        "The run in this model directory was a different one: other data, batch, seed or optimizer.",
        "Put the values back, allow the change with --accept-changes, or name another model directory.",
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
        "The two runs cannot be compared step by step: asynchronous training, or an order that no seed fixes.",
        "Compare with the setting that the message names.",
    ),
    "parity/run-failed": Code(
        "One of the runs to compare failed.",
        "Read its log, which the message names.",
    ),
    "scheduler/refused": Code(
        "Slurm or Kubernetes refused what was asked.",
        "The message has their answer; correct the option that it names.",
    ),
    "scheduler/unavailable": Code(
        "A command of Slurm, or kubectl, is not there or does not answer.",
        "Run it on a machine that has it (a login node), or try again later.",
    ),
    "strategy/not-possible": Code(
        "A distribution strategy was asked for that cannot work in this cluster or on these devices.",
        "Choose the strategy that the message names.",
    ),
    "system/disk": Code(
        "A disk or file server is full, read-only or fails.",
        "Make room or correct the mount; the same command goes on from the last checkpoint.",
    ),
    "system/limit": Code(
        "Memory, threads or addresses that the process may have are used up.",
        "Raise the limit that the message names (ulimit, the scheduler's memory), or use a smaller batch.",
    ),
    "tensorflow/not-installed": Code(
        "A package that is needed is not installed in this Python.",
        "Install it as the message says.",
    ),
    "tensorflow/removed-name": Code(
        "A name of TensorFlow is used that newer versions no longer have, and nothing takes its place.",
        "Write what the message advises; `estimator-pipeline migrate scan` finds all such names.",
    ),
    "tensorflow/unsupported-version": Code(
        "This version of TensorFlow is not supported for what was asked.",
        "Install TensorFlow 2.15 to 2.21.",
    ),
    "tensorflow/wrong-keras": Code(
        "tf.estimator needs Keras 2 (tf-keras) and the engine keras3 Keras 3; the other one is loaded or installed.",
        "Call compat.install() before TensorFlow is imported; install the tf-keras of TensorFlow's version.",
    ),
    "training/diverged": Code(
        "The loss or a weight is NaN or infinite.",
        "Lower the learning rate, clip gradients, or look for bad records; the same training diverges again.",
    ),
    "training/ended-early": Code(
        "The program ended its process before training had ended.",
        "Remove the call of sys.exit from the program's functions.",
    ),
    "training/evaluation-failed": Code(
        "An evaluation could not be made.",
        "Read what the message found; training itself stands in its checkpoint.",
    ),
    "training/no-checkpoint": Code(
        "Training ended without a checkpoint, so that nothing can be evaluated.",
        "Save checkpoints (train.save_checkpoints_steps), or train for more steps.",
    ),
    "training/preempted": Code(
        "The task was asked to end (SIGTERM, Ctrl-C, the scheduler), and training stands in a checkpoint.",
        "Give the same command again: training goes on from there.",
    ),
    "training/unsupported": Code(
        "What was asked is not possible with this engine or in this place.",
        "Choose the engine or the setting that the message names.",
    ),
}
"""From each code to its entry, sorted."""
