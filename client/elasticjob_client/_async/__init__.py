"""The client, written once for asyncio: the synchronous one in ``_sync`` is generated from it."""
