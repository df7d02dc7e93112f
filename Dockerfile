# The image in which a job's tasks run: docs/guides/kubernetes.md. Build it in the repository's root:
#   docker build -t REGISTRY/estimator-pipeline:0.1.0 .
#   docker build --build-arg TF=2.15 -t REGISTRY/estimator-pipeline:0.1.0-tf2.15 .
#   docker build --build-arg PACKAGES="tensorflow[and-cuda]" -t REGISTRY/estimator-pipeline:0.1.0-gpu .
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY setup.py pyproject.toml README.md LICENSE ./
COPY estimator_pipeline estimator_pipeline
COPY model_fns model_fns
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
# The minor version of TensorFlow, 2.15 to 2.21, and what a job needs besides, as pip takes it.
ARG TF=2.21
ARG PACKAGES=""
COPY --from=build /wheels /wheels
# hadolint ignore=DL3013
RUN python -m pip install --no-cache-dir "$(echo /wheels/*.whl)[tf${TF%%.*}-${TF#*.}]" ${PACKAGES} \
    && rm -r /wheels \
    && estimator-pipeline --version
# A number, so that Kubernetes can see that it is not root.
RUN groupadd --gid 1000 trainer && useradd --uid 1000 --gid 1000 --create-home trainer
USER 1000:1000
WORKDIR /home/trainer
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["estimator-pipeline"]
CMD ["--help"]
