"""`python -m devcluster`: see `devcluster.cli`."""

from devcluster.cli import main

main(prog_name="devcluster")
