"""The one exception for mistakes that a user can mend."""


class UserError(Exception):
    """Shown as one line, without a traceback; the message names what is wrong, where, and what to do."""
