"""The round kernel, which the operator calls; an agent will, once there are rounds without an operator.

It decides on the members of a round, which of them are lost, when a round ends and when the next begins.
It is pure: nothing here knows about pods, Leases or the operator, reads a clock or does I/O.
The words are those of docs/reference/glossary.md, the numbered rules those of docs/internals/invariants.md.
"""
