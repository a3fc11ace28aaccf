"""Joining and re-forming, measured: the backend `k8s` against torch's c10d, in one run on one machine.

What is measured is in `benchmarks.plan`, how in `benchmarks.measures` (one process per participant) and
`benchmarks.torchruns` (real torchruns); where it ends up in `benchmarks.results`. Both backends go through
the same code: a `benchmarks.backends.Session` says how a participant gets its handler and what happens
around it when one is killed. `python -m benchmarks --help`.
"""
