# The handler, to be copied into the pods of jobs: docker build -f docker/handler.Dockerfile -t REGISTRY/elasticjob-handler:0.1.0 .
#
# It holds a folder for PYTHONPATH and `cp`: nothing compiled, for every Python from 3.10 on. `docker run IMAGE FOLDER`
# copies it to FOLDER. Every path is below /opt/elasticjob, so that tests/chart/test_images.py can run these steps.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim
ARG COPY_IMAGE=docker.io/library/busybox:1.37

FROM ${PYTHON_IMAGE} AS build
WORKDIR /opt/elasticjob
COPY docker/handler-requirements.txt docker/build-requirements.txt ./
RUN python -m pip install --quiet --no-cache-dir --disable-pip-version-check --require-hashes --only-binary=:all: --no-compile --target=site -r handler-requirements.txt
RUN python -m pip install --quiet --no-cache-dir --disable-pip-version-check --require-hashes --only-binary=:all: --target=build -r build-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY handler handler
COPY operator operator
RUN PYTHONPATH=build python -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-index --no-deps --no-build-isolation --no-compile --target=site .
RUN rm -r site/elasticjob_operator

FROM ${COPY_IMAGE}
LABEL org.opencontainers.image.title="elasticjob-handler" \
      org.opencontainers.image.description="torchrun's rendezvous handler of ElasticJob, to be copied into a pod" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/elasticjob/site /opt/elasticjob/site
USER 65532:65532
ENTRYPOINT ["cp", "-R", "/opt/elasticjob/site/."]
