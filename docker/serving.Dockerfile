# TensorFlow Serving with one exported model (docs/serving.md):
#
#     docker build -f docker/serving.Dockerfile --build-arg MODEL=served/mine --build-arg NAME=mine -t mine-server .
#
# MODEL is the folder given to `export --format savedmodel`, within `served/`; VERSION the one whose batching.config is used.
ARG BASE=tensorflow/serving:2.20.0
FROM ${BASE}

ARG MODEL
ARG NAME
ARG VERSION=1
COPY ${MODEL} /models/${NAME}
COPY ${MODEL}/${VERSION}/batching.config /models/batching.config
ENV MODEL_NAME=${NAME}
# Arguments of the base image's entry point, which starts the server.
CMD ["--enable_batching", "--batching_parameters_file=/models/batching.config"]
