# The handler, to be copied into the pods of jobs: docker build -f docker/handler.Dockerfile -t REGISTRY/elasticjob-handler:0.1.0 .
#
# It holds a folder for PYTHONPATH and `cp`: nothing compiled, for every Python from 3.10 on. urllib3 is inside of the
# package, so that the folder hides nothing of a training image (docs/operate/pods.md); as it is there, the package needs no
# other, and says so. Every path is below /opt/elasticjob, so that tests/chart/test_images.py can run these steps.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim
ARG COPY_IMAGE=docker.io/library/busybox:1.37

FROM ${PYTHON_IMAGE} AS build
WORKDIR /opt/elasticjob
COPY docker/handler-requirements.txt docker/build-requirements.txt ./
RUN python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-compile --target=vendor -r handler-requirements.txt
RUN python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --target=build -r build-requirements.txt
COPY handler handler
RUN PYTHONPATH="$PWD/build" python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --no-compile --target=site ./handler
RUN sed -i '/^Requires-Dist:/d; /^Provides-Extra:/d' site/elasticjob-*.dist-info/METADATA
# No list of files, which would not be true, and not whence it came: pip freeze would have a folder of this stage in it.
RUN cd site && rm elasticjob-*.dist-info/RECORD elasticjob-*.dist-info/REQUESTED elasticjob-*.dist-info/INSTALLER elasticjob-*.dist-info/direct_url.json
# With its metadata: scanners go by that. Python does not, in a folder that is not on its path.
RUN mv vendor site/elasticjob/_vendor && touch site/elasticjob/_vendor/__init__.py

FROM ${COPY_IMAGE}
ARG COPY_IMAGE
# The commit, and the time of the build (RFC 3339). Empty, they still keep out what the base image says of itself.
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="elasticjob-handler" \
      org.opencontainers.image.description="torchrun's rendezvous handler of ElasticJob, to be copied into a pod" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0 AND MIT" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${COPY_IMAGE}"
COPY --from=build /opt/elasticjob/site /opt/elasticjob/site
USER 65532:65532
ENTRYPOINT ["cp", "-R", "/opt/elasticjob/site/."]
