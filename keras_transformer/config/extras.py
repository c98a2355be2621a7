"""The name of the distribution, and optional packages, which its extras install.

A package that only some features need is imported within `needs`. Without it, these features raise one line
that names the extra, and everything else works.
"""

import contextlib

DISTRIBUTION = "keras-transformer-translation"


class MissingExtraError(ImportError, ValueError):
    """A feature needs packages that an extra installs."""


@contextlib.contextmanager
def needs(extra, feature):
    """Context manager for the imports of a feature.

    Args:
        extra: str, name of an extra in setup.cfg, such as `"data"`.
        feature: str, begins the message, such as `"A plot"`.

    Raises:
        MissingExtraError: an import failed; the message names the extra.
    """
    try:
        yield
    except ImportError as error:
        reason = " ".join(str(error).split())
        message = f"{feature} needs the extra {extra!r} ({reason}): {install(extra)}"
        raise MissingExtraError(message) from error


def install(extra):
    """Returns the shell command that adds an extra to an installation; it also works in a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
