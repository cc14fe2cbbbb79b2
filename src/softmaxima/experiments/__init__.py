"""The experiments: each returns data, and none prints."""


class InputError(ValueError):
    """What was given or asked for cannot be used. The message is one line: what was wrong, what arrived and what to do."""
