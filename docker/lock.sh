#!/usr/bin/env bash
# Write the hash-locked requirements of the images, with the newest versions that the packages allow.
#
# docker/lock.sh --check    # writes nothing; fails unless all that is locked can be installed for each platform, from
#                           # wheels with these hashes
set -euo pipefail
cd "$(dirname "$0")/.."
UV=${UV:-.venv/bin/uv}
PYTHON=$(sed -n 's/^ARG PYTHON_IMAGE=.*python:\([0-9.]*\).*/\1/p' docker/operator.Dockerfile)
# uv's names; glibc 2.28 is that of Debian 10 and RHEL 8.
PLATFORMS="x86_64-manylinux_2_28 aarch64-manylinux_2_28"

lock() { "$UV" pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --upgrade --custom-compile-command docker/lock.sh "$@"; }

check() {
  for platform in $PLATFORMS; do
    for file in docker/*-requirements.txt; do
      "$UV" pip install --quiet --target "$folder/$platform/$file" --python-version "$PYTHON" --python-platform "$platform" \
        --only-binary :all: --require-hashes --requirements "$file"
      echo "$file on $platform with Python $PYTHON"
    done
  done
}

if [ "${1:-}" != --check ]; then
  lock --python-version 3.11 --no-emit-package elasticjob operator/pyproject.toml -o docker/operator-requirements.txt
  lock --python-version 3.10 handler/pyproject.toml -o docker/handler-requirements.txt
  lock --python-version 3.11 docker/build-requirements.in -o docker/build-requirements.txt
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
check
