# Generated from _async/__init__.py by `python client/unasync.py`: do not edit.
"""The client, written once for time: the synchronous one in ``_sync`` is generated from it."""
