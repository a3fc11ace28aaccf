# The operator: docker build -f docker/operator.Dockerfile -t REGISTRY/elasticjob-operator:0.1.0 .
#
# Every path is below /opt/elasticjob, so that tests/chart/test_images.py can run these steps in a folder of its own.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /opt/elasticjob
COPY docker/operator-requirements.txt docker/build-requirements.txt ./
# Without the packages' commands, which are not run.
RUN python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-compile --target=site -r operator-requirements.txt && rm -r site/bin
RUN python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --target=build -r build-requirements.txt
COPY handler handler
COPY operator operator
# Installed and not copied: scanners go by a package's metadata, and files get modes that any user can read.
RUN PYTHONPATH="$PWD/build" python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --no-compile --target=site ./handler ./operator
# pip freeze would have a folder of this stage in it.
RUN rm -r site/bin site/elasticjob*.dist-info/direct_url.json
# Valid whatever times a builder gives to files: on a read-only root it cannot be written again.
RUN python -m compileall -q --invalidation-mode=unchecked-hash site

FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
# The commit, and the time of the build (RFC 3339). Empty, they still keep out what the base image says of itself.
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="elasticjob-operator" \
      org.opencontainers.image.description="Operator of ElasticJob: elastic PyTorch training on Kubernetes" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
COPY --from=build /opt/elasticjob/site /opt/elasticjob/site
ENV PYTHONPATH=/opt/elasticjob/site PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "elasticjob_operator"]
