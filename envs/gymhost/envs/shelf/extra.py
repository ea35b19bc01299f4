"""What environments of the shelf need beyond gymhost's own dependencies."""

import importlib
from typing import Any


def needed(module: str, by: str) -> Any:
    """Imports a module of the extra `shelf`.

    Args:
        module: The module.
        by: The id of the environment that needs it.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{by} needs {module}, which comes with an extra: pip install 'gymhost[shelf]'", name=error.name
        ) from None
