#!/usr/bin/env bash
# Write the hash-locked requirements of the images, with the newest versions that the packages allow.
set -euo pipefail
cd "$(dirname "$0")/.."
UV=${UV:-.venv/bin/uv}
lock() { "$UV" pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --upgrade --custom-compile-command docker/lock.sh "$@"; }
lock --python-version 3.11 --no-emit-package elasticjob operator/pyproject.toml -o docker/operator-requirements.txt
lock --python-version 3.10 handler/pyproject.toml -o docker/handler-requirements.txt
lock --python-version 3.11 docker/build-requirements.in -o docker/build-requirements.txt
