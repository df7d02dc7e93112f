"""The job file: one YAML file with the model, the data, the length of training, the outputs and the cluster.

    from estimator_pipeline.job import load_job
    job = load_job("legacy_configs/digits_cnn_two_workers.yaml", overrides=["train.max_steps=100"])

Relative paths in a job file (data, `run.model_dir`, function files) start at the working directory of the
process, as in a program, not at the job file. `run.model_dir` and data paths may use any file system that
TensorFlow supports (`gs://...`). This package does not import TensorFlow.
"""

from __future__ import annotations

from estimator_pipeline.job.loading import dump_job, load_job, make_job
from estimator_pipeline.job.schema import (
    ArraysInput,
    BackupSection,
    ChiefCheckpoint,
    CsvInput,
    ExportSection,
    FeatureSection,
    FunctionInput,
    ImagesInput,
    InputCommon,
    Job,
    Keras,
    Kubernetes,
    LimitsSection,
    ModelCheckpoint,
    ModelSection,
    OptimizerSection,
    ParitySection,
    ParquetInput,
    PatchedMetadata,
    PbsResources,
    PbsSection,
    PodPatch,
    Pods,
    RateByEpoch,
    RolePods,
    Schedule,
    SchedulingPolicy,
    SlurmResources,
    SlurmSection,
    TableInput,
    TfdsInput,
    TFRecordInput,
    Toleration,
    Volume,
)
from estimator_pipeline.job.sections.run import (
    ENGINE_NAMES,
    ClusterSection,
    CommunicationSection,
    RunSection,
    ThreadsSection,
)
from estimator_pipeline.job.sections.training import EvalSection, ExporterSection, TrainingSection

__all__ = [
    "ENGINE_NAMES",
    "ArraysInput",
    "BackupSection",
    "ChiefCheckpoint",
    "ClusterSection",
    "CommunicationSection",
    "CsvInput",
    "EvalSection",
    "ExportSection",
    "ExporterSection",
    "FeatureSection",
    "FunctionInput",
    "ImagesInput",
    "InputCommon",
    "Job",
    "Keras",
    "Kubernetes",
    "LimitsSection",
    "ModelCheckpoint",
    "ModelSection",
    "OptimizerSection",
    "ParitySection",
    "ParquetInput",
    "PatchedMetadata",
    "PbsResources",
    "PbsSection",
    "PodPatch",
    "Pods",
    "RateByEpoch",
    "RolePods",
    "RunSection",
    "Schedule",
    "SchedulingPolicy",
    "SlurmResources",
    "SlurmSection",
    "TFRecordInput",
    "TableInput",
    "TfdsInput",
    "ThreadsSection",
    "Toleration",
    "TrainingSection",
    "Volume",
    "dump_job",
    "load_job",
    "make_job",
]
