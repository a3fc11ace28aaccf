"""What an agent answers when it does not do what it was asked for."""


class RefusedError(Exception):
    """What was asked for is not possible, and why: a sentence for the script's log."""
