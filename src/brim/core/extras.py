"""Optional dependencies: loaded where they are used, or one line that says what to install."""

from importlib import import_module
from typing import Any

from brim.core.errors import MissingExtraError


def need(module: str, *, extra: str, user: str) -> Any:
    """Import `module`, which `user` (a dotted name of ours) cannot do without.

    Raises:
        MissingExtraError: It is not installed. A module that is installed but fails to import raises its own error.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{user} needs {error.name}, which is not installed; run: pip install 'brim[{extra}]'"
        ) from None
