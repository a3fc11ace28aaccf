"""Rounds: their members, which of them are lost, when a round ends and when the next one begins. Pure.

Nothing here knows about pods, Leases or the operator, reads a clock or does I/O.
The words are those of docs/reference/glossary.md, the numbered rules those of docs/internals/invariants.md.
"""
