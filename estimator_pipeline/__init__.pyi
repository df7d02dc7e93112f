"""The public names, for type checkers and editors; __init__.py imports each when it is first used."""

from estimator_pipeline import cluster as cluster
from estimator_pipeline import compat as compat
from estimator_pipeline import doctor as doctor
from estimator_pipeline import errors as errors
from estimator_pipeline import inputs as inputs
from estimator_pipeline import migrate as migrate
from estimator_pipeline import testing as testing
from estimator_pipeline.distribute.run_config import build_run_config as build_run_config
from estimator_pipeline.engines.core.options import TrainOptions as TrainOptions
from estimator_pipeline.engines.core.result import TrainResult as TrainResult
from estimator_pipeline.engines.estimator.backend import train_and_evaluate as train_and_evaluate
from estimator_pipeline.engines.jobs.loaded import load_job as load_job
from estimator_pipeline.inputs import ledger as ledger
from estimator_pipeline.models import callbacks as callbacks
from estimator_pipeline.models.keras_model import build_keras_model as build_keras_model
from estimator_pipeline.models.keras_model import load_keras_model as load_keras_model
from estimator_pipeline.models.keras_model import save_keras_model as save_keras_model
from estimator_pipeline.models.model_fn import build_model_fn as build_model_fn
from estimator_pipeline.models.optimizers.moving_averages import averaged_weights as averaged_weights
from estimator_pipeline.models.outputs import Output as Output
from estimator_pipeline.models.outputs import keras_batches as keras_batches
from estimator_pipeline.utils.version import __version__ as __version__
