"""A guard: the packages beside `pdplan` have common names, so another project's may stand before them on the path."""

from __future__ import annotations

import os
from importlib.machinery import PathFinder

SIBLINGS = ("costmodel", "search_spaces", "optimizer", "reports", "templates")


def check_siblings(home: str) -> None:
    """Raise one clear ImportError when Python would import a foreign package instead of the one in `home`.

    This runs before anything else does, and before Ctrl-C is looked after: hence no pathlib, which takes longer to
    import than all of this.
    """
    for name in SIBLINGS:
        spec = PathFinder.find_spec(name)
        wanted = f"{home}{os.sep}{name}"
        found = spec.origin.rpartition(os.sep)[0] if spec and spec.origin else None
        if found is None or os.path.realpath(found) != os.path.realpath(wanted):
            msg = (
                f"pdplan needs its own package {name!r} at {wanted}, but Python finds {found or 'none'}; "
                f"move or uninstall the other one, or install pdplan in an environment of its own"
            )
            raise ImportError(msg)
