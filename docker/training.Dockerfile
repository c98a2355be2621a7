# All programs, for training above all (docs/distributed.md):
#
#     docker build -f docker/training.Dockerfile -t keras-transformer .
#     docker build -f docker/training.Dockerfile -t keras-transformer:gpu --build-arg EXTRAS=data,plots,gpu .
#
# BASE is any image with Python 3.11 to 3.13 and pip. The extra `gpu` brings CUDA's libraries, so a GPU needs no other base.
ARG BASE=python:3.12-slim
FROM ${BASE}

ARG EXTRAS=data,plots
WORKDIR /src
COPY setup.cfg setup.py pyproject.toml README.md LICENSE ./
COPY keras_transformer keras_transformer
# The versions are in setup.cfg.
# hadolint ignore=DL3013
RUN python3 -m pip install --no-cache-dir ".[${EXTRAS}]"

# Started with `--user`, the process has no home folder.
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["keras-transformer"]
CMD ["--help"]
