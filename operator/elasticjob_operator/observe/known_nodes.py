"""What all nodes together say, made when it is asked for and kept until a node changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from elasticjob.rounds.topology import Domains
from elasticjob_operator.observe.objects import SeenNode
from elasticjob_operator.observe.store import Store


class KnownNodes:
    """The nodes as they are; another one when one has changed."""

    def __init__(self, nodes: Store[SeenNode]) -> None:
        self._nodes = nodes

    @cached_property
    def ready(self) -> frozenset[str] | None:
        """The names of the ready nodes, None where nodes can't be seen."""
        return frozenset(node.name for node in self._nodes.all() if node.ready) if len(self._nodes) else None

    @cached_property
    def domains(self) -> Mapping[str, Domains]:
        """The domains of each node, by name."""
        return {node.name: node.domains for node in self._nodes.all()}
