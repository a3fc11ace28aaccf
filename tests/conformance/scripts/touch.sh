#!/bin/sh
# A training program that is not Python: each worker makes the file FOLDER/RANK.
set -e
printf %s "$WORLD_SIZE" > "$1/$RANK"
