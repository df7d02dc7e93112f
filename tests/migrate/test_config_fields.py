"""What each field of each format becomes; the tables of fields, held against what the services document."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.formats import (
    cloud_ml_engine,
    hyperparameters,
    run_configs,
    sagemaker,
)
from estimator_pipeline.migrate.configs.python_reprs import parse_proto
from tests.support.config_cases import CONFIGS, converted, found


@pytest.fixture
def made(tmp_path):
    """Converts a document (JSON) or a text."""

    def convert(content, **arguments):
        path = tmp_path / "config"
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return converted(path, **arguments)

    return convert


def decided(conversion, name):
    return [f.why for f in conversion.findings if f.item.name == name and f.state == "needs a decision"]


# The tables, against what is documented ---------------------------------------------------------------------------


def test_every_argument_and_every_logged_name_of_run_config():
    """The arguments are read from the installed package, whose text is not imported."""
    (folder,) = importlib.util.find_spec("tensorflow_estimator").submodule_search_locations
    tree = ast.parse((Path(folder) / "python" / "estimator" / "run_config.py").read_text())
    (config,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "RunConfig"]
    (init,) = [n for n in config.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    arguments = {argument.arg for argument in init.args.args} - {"self"}
    logged = {
        node.attr.lstrip("_")
        for node in ast.walk(config)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and getattr(node.value, "id", "") == "self"
    }
    assert len(arguments) > 12
    assert arguments - run_configs.NAMES == set()
    assert logged - run_configs.NAMES == set()


def test_every_argument_of_the_older_run_config():
    """https://www.tensorflow.org/versions/r1.4/api_docs/python/tf/contrib/learn/RunConfig"""
    arguments = (
        "master num_cores log_device_placement gpu_memory_fraction tf_random_seed save_summary_steps "
        "save_checkpoints_secs save_checkpoints_steps keep_checkpoint_max keep_checkpoint_every_n_hours "
        "log_step_count_steps protocol evaluation_master model_dir session_config"
    )
    properties = "cluster_spec environment is_chief num_ps_replicas num_worker_replicas task_id task_type tf_config"
    assert {*arguments.split(), *properties.split()} <= run_configs.NAMES


def test_every_flag_that_absl_defines():
    from absl import app, flags, logging  # noqa: F401  (importing them defines their flags)

    own = {f.name for module, fs in flags.FLAGS.flags_by_module_dict().items() if module.startswith("absl") for f in fs}
    assert len(own) > 8 and own - hyperparameters.OWN_FLAGS == {"log_dir"}


def test_every_field_of_an_ai_platform_job():
    """https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs#traininginput"""
    fields = (
        "scaleTier masterType masterConfig workerType workerConfig parameterServerType parameterServerConfig "
        "evaluatorType evaluatorConfig workerCount parameterServerCount evaluatorCount packageUris pythonModule args "
        "hyperparameters region jobDir runtimeVersion pythonVersion encryptionConfig scheduling network serviceAccount "
        "useChiefInTfConfig enableWebAccess"
    )
    assert set(cloud_ml_engine.names_below(("trainingInput",))) >= set(fields.split())


def test_every_field_of_a_training_job_of_sagemaker():
    """https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html"""
    fields = (
        "TrainingJobName HyperParameters AlgorithmSpecification RoleArn InputDataConfig OutputDataConfig "
        "ResourceConfig VpcConfig StoppingCondition Tags EnableNetworkIsolation EnableInterContainerTrafficEncryption "
        "EnableManagedSpotTraining CheckpointConfig DebugHookConfig DebugRuleConfigurations TensorBoardOutputConfig "
        "ExperimentConfig ProfilerConfig ProfilerRuleConfigurations Environment RetryStrategy InfraCheckConfig "
        "RemoteDebugConfig SessionChainingConfig"
    )
    assert set(sagemaker.JOB) >= set(fields.split())


def test_no_field_of_a_table_is_unknown_to_its_reader(made):
    """Each field is in a document once, and none comes out as one that is not known."""
    fields: dict = dict.fromkeys(cloud_ml_engine.names_below(("trainingInput",)), "x")
    for role in cloud_ml_engine.ROLES:
        fields[f"{role}Config"] = {"acceleratorConfig": {"count": "1", "type": "T4"}, "imageUri": "x", "diskConfig": {}}
    fields |= {"scheduling": {"maxRunningTime": "60s", "priority": 1}, "args": ["--x"], "hyperparameters": {"goal": 1}}
    conversion = made({"trainingInput": fields, "labels": {"a": "b"}, "jobId": "x"})
    assert not [f for f in conversion.findings if "unknown field" in f.why or "corresponds" in f.why]
    values: dict = dict.fromkeys(sagemaker.JOB, "x")
    values |= {"Tags": [{"Key": "a", "Value": "b"}], "Environment": {"A": "1"}, "HyperParameters": {"a": "1"}}
    values |= {name: dict.fromkeys(sagemaker.JOB[name], 1) for name in ("ResourceConfig", "AlgorithmSpecification",
                                                                       "OutputDataConfig")}  # fmt: skip
    values |= {"RetryStrategy": {"MaximumRetryAttempts": 2}, "InputDataConfig": [{"ChannelName": "x"}]}
    values |= {"StoppingCondition": {"MaxRuntimeInSeconds": 60}, "CheckpointConfig": {"S3Uri": "/x"}}
    conversion = made(values)
    assert not [f for f in conversion.findings if "unknown field" in f.why or "corresponds" in f.why]


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"workerCount": "many"}, "cluster.workers", None),
        ({"workerCount": -1}, "cluster.workers", None),
        ({"workerCount": "2"}, "cluster.workers", 2),
        ({"workerCount": 10**20}, "cluster.workers", 10**20),
        ({"masterConfig": "x"}, "kubernetes", None),
        ({"masterConfig": {"acceleratorConfig": {"count": "2", "type": "TPU_V2"}}}, "kubernetes", None),
        ({"scheduling": {"maxRunningTime": "soon"}}, "kubernetes.active_deadline_seconds", None),
        ({"args": "--x"}, "model.params", None),
    ],
)
def test_a_value_that_a_field_does_not_allow_is_a_decision(made, fields, field, value):
    conversion = made({"trainingInput": {"scaleTier": "CUSTOM", **fields}})
    job = conversion.job
    for step in field.split("."):
        job = (job or {}).get(step)
    assert job == value
    name = next(iter(fields))
    assert value is not None or [f for f in conversion.findings if name in f.item.name and f.state != "taken"]


def test_machines(made):
    """The GPUs of a machine type are taken; its CPUs and memory are a decision."""
    for kind, gpus in (("ml.p3.8xlarge", 4), ("ml.g4dn.xlarge", 1), ("ml.m5.xlarge", None), ("ml.x9.huge", None)):
        conversion = made({"instance_type": kind, "instance_count": 1})
        assert conversion.job.get("kubernetes") == (gpus and {"roles": {"worker": {"gpus": gpus}}})
        assert "cpu and memory" in decided(conversion, "instance_type")[0]


# RunConfig ---------------------------------------------------------------------------------------------------------


def run_config(made, **fields):
    return made({"model_dir": "/x", "tf_random_seed": 1, **fields}, wanted="run_config")


@pytest.mark.parametrize(
    ("name", "value", "outcome"),
    [
        ("keep_checkpoint_max", None, ("taken", "run.keep_checkpoint_max", None)),
        ("keep_checkpoint_max", 0, ("taken", "run.keep_checkpoint_max", 0)),
        ("save_checkpoints_secs", 300, ("taken", "run.save_checkpoints_secs", 300)),
        ("experimental_max_worker_delay_secs", 60, ("taken", "run.max_worker_delay_secs", 60)),
        ("protocol", "grpc+verbs", ("taken", "run.protocol", "grpc+verbs")),
        ("save_summary_steps", None, ("needs a decision", "run.save_summary_steps", None)),
        ("save_summary_steps", 0, ("needs a decision", "run.save_summary_steps", None)),
        ("save_checkpoints_steps", 2.5, ("needs a decision", "run.save_checkpoints_steps", None)),
        ("save_checkpoints_steps", "100", ("needs a decision", "run.save_checkpoints_steps", None)),
        ("gpu_memory_fraction", 0.5, ("needs a decision", "run.session_config.gpu_options", None)),
        ("gpu_memory_fraction", 1, ("no longer needed", None, None)),
        ("log_device_placement", True, ("taken", "run.session_config.log_device_placement", True)),
        ("session_config", "\x08\x01", ("needs a decision", "run.session_config", None)),
        ("device_fn", "<function f at 0x7f>", ("needs a decision", None, None)),
        ("tpu_config", "TPUConfig(iterations_per_loop=100)", ("needs a decision", None, None)),
        ("train_distribute", "<x.MirroredStrategyV1 object at 0x7f>", ("taken", "run.train_distribute", "mirrored")),
        ("train_distribute", "<x.TPUStrategy object at 0x7f>", ("needs a decision", "run.train_distribute", None)),
        ("eval_distribute", "<x.MirroredStrategy object>", ("taken", "run.eval_distribute", "mirrored")),
        ("eval_distribute", "<x.CollectiveAllReduceStrategy>", ("needs a decision", "run.eval_distribute", None)),
        ("is_chief", True, ("no longer needed", None, None)),
        ("something_else", 1, ("needs a decision", None, None)),
        ("something_else", None, ("no longer needed", None, None)),
    ],
)
def test_a_field_of_run_config(made, name, value, outcome):
    assert found(run_config(made, **{name: value}), name) == [outcome]


def test_a_temporary_model_dir_is_not_one(made):
    conversion = made({"model_dir": "/tmp/tmpf3_k29zq", "tf_random_seed": 1})
    assert ("run", "model_dir") in conversion.placeholders and "temporary" in decided(conversion, "model_dir")[0]


@pytest.mark.parametrize(
    ("fields", "cluster", "strategy"),
    [
        ({"num_worker_replicas": 1, "num_ps_replicas": 0}, None, None),
        ({"num_worker_replicas": 3, "num_ps_replicas": 2, "task_type": "chief"}, (2, True, 2), "parameter_server"),
        ({"num_worker_replicas": 3, "task_type": "worker", "is_chief": True}, (3, None, None), "???"),
        ({"num_worker_replicas": 3, "task_type": "worker", "is_chief": False}, ("???", None, None), None),
        ({"cluster_spec": {"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}}, (2, None, None), "???"),
    ],
)
def test_the_cluster_of_a_run_config(made, fields, cluster, strategy):
    job = run_config(made, **fields).job
    there = job.get("cluster")
    assert (there and (there["workers"], there.get("chief"), there.get("ps"))) == cluster
    assert job["run"].get("train_distribute") == strategy


def test_seconds_between_checkpoints_do_not_go_with_several_workers(made):
    conversion = run_config(made, save_checkpoints_secs=600, train_distribute="<MultiWorkerMirroredStrategy>")
    (why,) = decided(conversion, "save_checkpoints_secs")
    assert "cannot save checkpoints by time" in why and "save_checkpoints_secs" not in conversion.job["run"]


def test_protocol_buffers_as_text():
    text = (
        'device_count { key: "CPU" value: 2 } device_count {\n key: "GPU"\n value: 0 }\nallow_soft_placement: true\n'
        "gpu_options { per_process_gpu_memory_fraction: 0.5 } # why\nplacement_period: -1\nnames: 'a' names: \"b\\n\""
    )
    assert parse_proto(text) == {
        "device_count": {"CPU": 2, "GPU": 0},
        "allow_soft_placement": True,
        "gpu_options": {"per_process_gpu_memory_fraction": 0.5},
        "placement_period": -1,
        "names": ["a", "b\n"],
    }
    assert parse_proto("") == {}
    for wrong in ("a {", "a }", "a: ", "a", "1: 2", "a { b: } ", "}"):
        assert parse_proto(wrong) is None, wrong


# Hyperparameters and flags ------------------------------------------------------------------------------------------


def test_batches_of_several_workers(made):
    """A program's batch was that of each worker, or of all: nobody knows, so nothing is guessed."""

    def job(tier):
        return {"trainingInput": {**tier, "args": ["--batch_size=32"]}}

    alone = made(job({"scaleTier": "BASIC"}))
    assert alone.job["input"]["global_batch_size"] == 32
    servers = made(job({"scaleTier": "STANDARD_1"}))
    assert servers.job["input"]["global_batch_size"] == 32
    assert servers.job["cluster"] == {"workers": 4, "chief": True, "ps": 3}
    workers = made(job({"scaleTier": "CUSTOM", "masterType": "standard", "workerType": "standard", "workerCount": 3}))
    assert workers.job["input"]["global_batch_size"] == "???"
    assert "128 if it is the batch of each worker (4 train)" in decided(workers, "--batch_size of args[0]")[0]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("--optimizer=AdamOptimizer", "model.optimizer.name", "adam"),
        ("--optimizer=gradient_descent", "model.optimizer.name", "sgd"),
        ("--optimizer=Ftrl", "model.optimizer.name", "ftrl"),
        ("--optimizer=lamb", "model.optimizer.name", "???"),
        ("--train_steps=1e4", "train.max_steps", 10000),
        ("--max_steps=1.5", "train.max_steps", "???"),
        ("--num_epochs=0.5", "train.epochs", 0.5),
        ("--num_epochs=3\n--train_steps=5", "train.epochs", None),
        ("--eval_steps=0", "eval.steps", None),
        ("--eval_steps=7", "eval.steps", 7),
        ("--clip_norm=0", "model.clip_norm", None),
        ("--model_dir=s3://b/x", "run.model_dir", "???"),
        ("--model_dir=", "run.model_dir", "???"),
        ("--job-dir=gs://b/x", "run.model_dir", "gs://b/x"),
        ("--momentum=0.9", "model.optimizer.options.momentum", None),
        ("--momentum=0.9\n--optimizer=momentum", "model.optimizer.options.momentum", 0.9),
        ("--learning_rate=0.1\n--decay_steps=100", "model.optimizer.learning_rate", "???"),
        ("--learning_rate=0.1\n--lr=0.2", "model.optimizer.learning_rate", 0.1),
        ("--save_checkpoints_steps=10\n--save_checkpoints_secs=60", "run.save_checkpoints_secs", None),
    ],
)
def test_a_flag(made, text, field, value):
    job = made(text + "\n--showprefixforinfo\n").job
    for step in field.split("."):
        job = (job or {}).get(step)
    assert job == value


def test_the_order_of_flags_does_not_matter(made):
    """What a batch means depends on the cluster, wherever the flags stand that say it."""
    lines = [
        "--batch_size=8",
        "--num_epochs=2",
        "--worker_hosts=a:1,b:1",
        "--ps_hosts=c:1",
        "--optimizer=sgd",
        "--lr=1",
    ]
    forth, back = made("\n".join(lines)).job, made("\n".join(reversed(lines))).job
    assert forth == back and forth["input"]["global_batch_size"] == 8 and forth["train"]["epochs"] == "???"
    lines.remove("--ps_hosts=c:1")
    forth, back = made("\n".join(lines)).job, made("\n".join(reversed(lines))).job
    assert forth == back and forth["input"]["global_batch_size"] == "???"


def test_a_job_without_an_end_is_not_started(made):
    assert made("learning_rate=0.1,optimizer=sgd").job["train"] == {"max_steps": "???"}
    assert made("lr=0.1,optimizer=sgd", settings=["train.epochs=2"]).job["train"] == {"epochs": 2}
    assert made("lr=0.1,optimizer=sgd", settings=["train.max_steps=2"]).job["train"] == {"max_steps": 2}


def test_the_batch_of_several_gpus_is_a_decision(made):
    conversion = made("--batch_size=8\n--distribution_strategy=mirrored\n")
    assert conversion.job["input"]["global_batch_size"] == "???"
    assert "the batch of each GPU" in decided(conversion, "--batch_size")[0]


def test_numbers_beside_a_scale_tier_that_has_its_own(made):
    document = {"scaleTier": "STANDARD_1", "workerCount": 9, "parameterServerCount": 1}
    conversion = made({"trainingInput": document})
    assert conversion.job["cluster"] == {"workers": 4, "chief": True, "ps": 3}
    assert decided(conversion, "trainingInput.workerCount") == [
        "ignored: the scale tier STANDARD_1 sets the numbers; only CUSTOM uses this field"
    ]
    assert "cluster" not in made({"trainingInput": {"workerCount": 9}}).job


def test_groups_of_instances_are_counted_by_a_person(made):
    groups = [{"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "InstanceGroupName": "a"}]
    conversion = made({"TrainingJobName": "x", "ResourceConfig": {"InstanceGroups": groups}})
    assert conversion.job["cluster"] == {"workers": "???"}


def test_flags_of_one_meaning_that_differ_are_a_decision(made):
    conversion = made("--learning_rate=0.1\n--lr=0.2\n")
    assert decided(conversion, "--lr") == ["--learning_rate (line 1) already sets 0.1"]


def test_flags_as_absl_reads_them(tmp_path):
    """The same file by absl itself: comments, nested files, --no, a value on the next line, the last one counts."""
    from absl import flags

    (tmp_path / "inner").write_text("# inner\n--batch_size=8\n--save_checkpoints_steps=5\n")
    (tmp_path / "outer").write_text(
        f"--batch_size=4\n// a comment\n--flagfile={tmp_path}/inner\n\n"
        "  --learning_rate  \n  0.5\n-train_steps=7\n--noshuffle\n"
    )
    values = flags.FlagValues()
    flags.DEFINE_integer("batch_size", 0, "", flag_values=values)
    flags.DEFINE_integer("save_checkpoints_steps", 0, "", flag_values=values)
    flags.DEFINE_integer("train_steps", 0, "", flag_values=values)
    flags.DEFINE_float("learning_rate", 0.0, "", flag_values=values)
    flags.DEFINE_boolean("shuffle", True, "", flag_values=values)
    values.mark_as_parsed()
    values(["program", *values.read_flags_from_files([f"--flagfile={tmp_path}/outer"], force_gnu=False)])
    conversion = converted(tmp_path / "outer")
    job = conversion.job
    assert job["input"]["global_batch_size"] == values.batch_size == 8
    assert job["run"]["save_checkpoints_steps"] == values.save_checkpoints_steps == 5
    assert job["train"]["max_steps"] == values.train_steps == 7
    assert job["model"]["optimizer"]["learning_rate"] == values.learning_rate == 0.5
    assert values.shuffle is False and "--shuffle=false" in decided(conversion, "--noshuffle")[0]


def test_no_before_a_name_that_is_known(made):
    conversion = made("--nouse_tpu\n--normalize\n--nobn\n--bn\n")
    assert found(conversion, "--nouse_tpu")[0][0] == "no longer needed"
    assert decided(conversion, "--normalize") == ["either --rmalize=false, or a flag with exactly this name"]
    assert [f.item.value for f in conversion.findings if f.item.name == "--nobn"] == [False]


def test_hparams_as_text(made):
    conversion = made("lr=1e-3, hidden=[10, 20], name=wide_deep, flag=true, none=")
    params = conversion.job["model"]["params"]
    assert params == {"hidden": [10, 20], "name": "wide_deep", "flag": True, "none": ""}
    assert conversion.job["model"]["optimizer"]["learning_rate"] == 1e-3
    assert conversion.job["model"]["optimizer"]["name"] == "???"


def test_a_hyperparameter_that_is_the_models(made):
    conversion = made("--hidden=3\n--learning_rate=0.1\n", params=["hidden", "learning-rate"])
    assert conversion.job["model"]["params"] == {"hidden": 3, "learning_rate": 0.1}
    with pytest.raises(ConfigError, match=r"--param width: .* has no such hyperparameter"):
        made("--hidden=3\n", params=["width"])


# Services -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "own_chief", "dialect"),
    [("1.15", None, "master"), ("1.15", True, None), ("2.1", None, None), (1.4, None, "master")],
)
def test_the_dialect_of_ai_platform(made, version, own_chief, dialect):
    document = {"scaleTier": "STANDARD_1", "runtimeVersion": version, "useChiefInTfConfig": own_chief}
    assert made({"trainingInput": document}).job["cluster"].get("dialect") == dialect


def test_tpus_are_said_to_be_none(made):
    for document in (
        {"scaleTier": "BASIC_TPU"},
        {"scaleTier": "CUSTOM", "masterType": "cloud_tpu"},
        {"scaleTier": "CUSTOM", "masterConfig": {"acceleratorConfig": {"type": "TPU_V2", "count": 8}}},
    ):
        assert hyperparameters.NO_TPU in [f.why for f in made({"trainingInput": document}).findings]


def test_limits_of_time_by_scheduler(made):
    document = {"trainingInput": {"scheduling": {"maxRunningTime": "90s"}, "scaleTier": "BASIC_GPU"}}
    pods = made(document).job["kubernetes"]
    assert pods == {"roles": {"worker": {"gpus": 1}}, "active_deadline_seconds": 90}
    assert made(document, scheduler="slurm").job["slurm"] == {"time": 2, "roles": {"worker": {"gpus_per_task": 1}}}
    with pytest.raises(ConfigError, match="--scheduler 'pbs': unknown scheduler"):
        made(document, scheduler="pbs")


def test_several_gpus_in_one_task_ask_for_a_strategy(made):
    for document in (
        {"trainingInput": {"scaleTier": "CUSTOM", "masterType": "complex_model_m_gpu"}},
        {"instance_type": "ml.p3.8xlarge", "instance_count": 1},
    ):
        conversion = made(document)
        assert conversion.job["run"]["train_distribute"] == "???"
        assert "all 4 GPUs" in conversion.placeholders[("run", "train_distribute")]


def test_an_unknown_field_and_the_nearest_name(made):
    conversion = made({"trainingInput": {"wokerCount": 3, "masterConfig": {"imageUrl": "x"}, "zzz": {"a": {"b": 1}}}})
    whys = {f.item.name: f.why for f in conversion.findings}
    assert whys["trainingInput.wokerCount"] == "unknown field; did you mean workerCount?"
    assert whys["trainingInput.masterConfig.imageUrl"].endswith("did you mean imageUri?")
    assert whys["trainingInput.zzz"] == "unknown field"


def test_a_search_is_left_to_a_person_by_the_names_of_its_hyperparameters(made):
    conversion = made((CONFIGS / "cloud_ml_engine" / "hptuning.yaml").read_text())
    assert decided(conversion, "trainingInput.hyperparameters") == [
        "a search is not converted (learning-rate, batch-size, optimizer, hidden1): run the job once for each value, "
        "as submit slurm --array does"
    ]
    assert (
        conversion.job["model"]["optimizer"]["learning_rate"] == conversion.job["input"]["global_batch_size"] == "???"
    )
    conversion = made({"trainingInput": {"scaleTier": "BASIC", "hyperparameters": {"goal": "MAXIMIZE"}}})
    assert decided(conversion, "trainingInput.hyperparameters") == [
        "a search is not converted: run the job once for each value, as submit slurm --array does"
    ]


def sagemaker_job(made, count, hyperparameters, **arguments):
    resources = {"InstanceCount": count, "InstanceType": "ml.m5.xlarge"}
    strings = {name: json.dumps(value) for name, value in hyperparameters.items()}
    document = {"TrainingJobName": "x", "ResourceConfig": resources, "HyperParameters": strings}
    return made(document, **arguments)


def test_the_cluster_of_sagemaker(made):
    ps = {"sagemaker_parameter_server_enabled": True}
    assert sagemaker_job(made, 3, ps).job["cluster"] == {"workers": 2, "chief": True, "ps": 3, "dialect": "master"}
    assert "cluster" not in sagemaker_job(made, 1, ps).job
    mirrored = sagemaker_job(made, 2, {"sagemaker_multi_worker_mirrored_strategy_enabled": True}).job
    assert mirrored["cluster"] == {"workers": 2} and mirrored["run"]["train_distribute"] == "multi_worker_mirrored"
    assert sagemaker_job(made, 2, {}).job["run"]["train_distribute"] == "???"


def test_the_sdks_two_names_for_one_argument(made):
    old = {
        "train_instance_count": 2,
        "train_instance_type": "ml.c5.xlarge",
        "distributions": {"mpi": {"enabled": True}},
    }
    new = {"instance_count": 2, "instance_type": "ml.c5.xlarge", "distribution": {"mpi": {"enabled": True}}}
    a, b = made(old), made(new)
    assert a.job == b.job and a.job["cluster"] == {"workers": 2}
    assert "Horovod" in decided(a, "distributions.mpi")[0] and "Horovod" in decided(b, "distribution.mpi")[0]


POD = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: x}
spec:
  %s
  tfReplicaSpecs:
    Worker:
      replicas: %s
      template:
        spec:
          %s
          containers:
            - name: sidecar
              image: y
            - name: tensorflow
              image: x
              %s
"""


@pytest.mark.parametrize(
    ("spec", "pod", "container", "field", "value"),
    [
        ("backoffLimit: 6", "", "", "max_restarts", 3),
        ("runPolicy: {backoffLimit: 3}", "", "", "max_restarts", 2),
        ("runPolicy: {ttlSecondsAfterFinished: 9}", "", "", "ttl_seconds_after_finished", 9),
        ("activeDeadlineSeconds: 60", "", "", "active_deadline_seconds", 60),
        ("", "priorityClassName: high", "", "priority_class", "high"),
        ("", "terminationGracePeriodSeconds: 120", "", "termination_grace_seconds", 120),
        ("", "terminationGracePeriodSeconds: 5", "", "termination_grace_seconds", None),
        ("", "securityContext: {runAsUser: 1000, fsGroup: 2000}", "", "fs_group", 2000),
        ("", "nodeSelector: {pool: a}", "", "pods", {"node_selector": {"pool": "a"}}),
        ("", "tolerations: [{key: a, value: b}]", "", "pods",
         {"tolerations": [{"operator": "Equal", "key": "a", "value": "b"}]}),
        ("", "", "resources: {limits: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: '2'}}", "pods",
         {"cpu": "500m", "memory": "1Gi", "gpus": 2}),
        ("", "", "resources: {limits: {amd.com/gpu: 1}}", "pods", {"gpu_resource": "amd.com/gpu", "gpus": 1}),
        ("", "", "envFrom: [{secretRef: {name: s}}, {configMapRef: {name: c}}]", "env_from_secrets", ["s"]),
        ("", "", "env: [{name: A}, {name: TF_CONFIG, value: x}, {name: B, value: '1'}]", "env", {"A": "", "B": "1"}),
        ("", "", "imagePullPolicy: Always", "image_pull_policy", "Always"),
        ("", "volumes: [{name: v, nfs: {server: nas, path: /e}}]",
         "volumeMounts: [{name: v, mountPath: /d/, subPath: s, readOnly: true}]", "volumes",
         [{"mount_path": "/d", "nfs": "nas:/e", "read_only": True, "sub_path": "s"}]),
        ("", "volumes: [{name: v, hostPath: {path: /e}}]", "volumeMounts: [{name: v, mountPath: /d}]", "volumes", None),
        ("", "volumes: [{name: v, secret: {secretName: s}}, {name: w, configMap: {name: c}}]",
         "volumeMounts: [{name: v, mountPath: /s}, {name: w, mountPath: /c}]", "volumes",
         [{"mount_path": "/s", "secret": "s"}, {"mount_path": "/c", "config_map": "c"}]),
    ],
)  # fmt: skip
def test_a_field_of_a_tfjob(made, spec, pod, container, field, value):
    conversion = made(POD % (spec, 2, pod, container))
    assert conversion.job["kubernetes"].get(field) == value
    assert "a second container" in " ".join(f.why for f in conversion.findings)
    if value is None:
        assert [f for f in conversion.findings if f.state == "needs a decision" and f.to == ("kubernetes", field)]


def test_several_gpus_in_a_pod_of_one_worker(made):
    text = POD % ("", 1, "", "resources: {limits: {nvidia.com/gpu: 4}}")
    assert made(text).job["run"]["train_distribute"] == "???"


@pytest.mark.parametrize(
    ("command", "steps", "says"),
    [
        ("command: [python, -m, trainer.task, --train_steps=5]", 5, "python -m trainer.task"),
        ("command: [bash, -c, 'exec python -u a.py --train_steps 5']", 5, "exec python -u a.py"),
        ("command: [bash, -c, 'pip install x && python a.py --train_steps 5']", "???", "a shell script"),
        ("args: [--train_steps=5]", 5, None),
        ("command: [bash, -c, 'python a.py --train_steps=$STEPS']", "???", "$STEPS"),
        ("args: ['--train_steps=$(STEPS)']", "???", "$(STEPS)"),
        ("command: [/opt/train.sh]\n              args: [--train_steps, 5]", 5, "/opt/train.sh"),
    ],
)
def test_the_program_of_a_tfjob(made, command, steps, says):
    conversion = made(POD % ("", 1, "", command))
    assert conversion.job.get("train", {}).get("max_steps") == steps
    if says:
        told = " ".join(f"{f.item.value}: {f.why}" for f in conversion.findings if f.state == "needs a decision")
        assert says in told


def test_roles_of_a_tfjob_that_are_none(made):
    text = POD % ("", 1, "", "")
    with pytest.raises(ConfigError, match=r"line 8: spec\.tfReplicaSpecs\.Boss: not a role of a TFJob"):
        made(text.replace("Worker:", "Boss:"))
    twice = text.replace("Worker:", "Master:") + text[text.index("    Worker:") :].replace("Worker:", "Chief:")
    with pytest.raises(ConfigError, match="a second chief"):
        made(twice)
    with pytest.raises(ConfigError, match="line 3: not a TFJob"):
        made(text.replace("kind: TFJob", "kind: MPIJob"), wanted="tfjob")
    assert (
        "unknown policy"
        in decided(made(text.replace("template:", "restartPolicy: Often\n      template:")), "Worker: restartPolicy")[0]
    )


def test_what_contradicts_itself_is_no_job(made):
    """A job that the schema refuses is not written; the message names the fields and where they came from."""
    with pytest.raises(ConfigError) as caught:
        made(
            "--global_batch_size=10\n--worker_hosts=a:1,b:1,c:1\n",
            settings=["run.train_distribute=multi_worker_mirrored"],
        )
    said = str(caught.value)
    assert "is not valid:" in said and "--global_batch_size (line 1)" in said and "3 replicas" in said
