"""One training under one schedule of faults, by ElasticJob and by what a user would take instead of it.

`schedule` says what happens at which step, `pods` plays the kubelet for all systems alike, `run` brings both
together, `judging` says what it has cost, `report` writes it down. Each system has a file of its own, which
says what it is started with, and an environment of its own (`environments`).
"""
