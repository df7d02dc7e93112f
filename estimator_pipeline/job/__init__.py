"""The job file: one YAML file with the model, the data, the length of training, the outputs and the cluster.

    from estimator_pipeline.job import load_job
    job = load_job("legacy_configs/digits_cnn_two_workers.yaml", overrides=["train.max_steps=100"])

Relative paths in a job file (data, `run.model_dir`, function files) start at the working directory of the
process, as in a program, not at the job file. `run.model_dir` and data paths may use any file system that
TensorFlow supports (`gs://...`). This package does not import TensorFlow.
"""

from __future__ import annotations

from estimator_pipeline.job.loading import dump_job, load_job, make_job
from estimator_pipeline.job.schema import Job
from estimator_pipeline.job.sections.input import (
    ArraysInput,
    CsvInput,
    FunctionInput,
    ImagesInput,
    InputCommon,
    ParquetInput,
    TableInput,
    TfdsInput,
    TFRecordInput,
)
from estimator_pipeline.job.sections.kubernetes import Kubernetes, Pods
from estimator_pipeline.job.sections.model import ModelSection
from estimator_pipeline.job.sections.pbs import PbsResources, PbsSection
from estimator_pipeline.job.sections.run import ENGINE_NAMES, ClusterSection, RunSection
from estimator_pipeline.job.sections.slurm import SlurmResources, SlurmSection
from estimator_pipeline.job.sections.training import EvalSection, TrainingSection

__all__ = [
    "ArraysInput",
    "ClusterSection",
    "CsvInput",
    "ENGINE_NAMES",
    "EvalSection",
    "FunctionInput",
    "ImagesInput",
    "InputCommon",
    "Job",
    "Kubernetes",
    "ModelSection",
    "ParquetInput",
    "PbsResources",
    "PbsSection",
    "Pods",
    "RunSection",
    "SlurmResources",
    "SlurmSection",
    "TFRecordInput",
    "TableInput",
    "TfdsInput",
    "TrainingSection",
    "dump_job",
    "load_job",
    "make_job",
]
