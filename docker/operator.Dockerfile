# The operator: docker build -f docker/operator.Dockerfile -t REGISTRY/elasticjob-operator:0.1.0 .
#
# Every path is below /opt/elasticjob, so that tests/chart/test_images.py can run these steps in a folder of its own.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /opt/elasticjob
COPY docker/operator-requirements.txt requirements.txt
RUN python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-compile --target=site -r requirements.txt
COPY handler/elasticjob site/elasticjob
COPY operator/elasticjob_operator site/elasticjob_operator
RUN python -m compileall -q site

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="elasticjob-operator" \
      org.opencontainers.image.description="Operator of ElasticJob: elastic PyTorch training on Kubernetes" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/elasticjob/site /opt/elasticjob/site
ENV PYTHONPATH=/opt/elasticjob/site PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "elasticjob_operator"]
