"""A guard: the packages beside `pdplan` have common names, so another project's may stand before them on the path."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

SIBLINGS = ("costmodel", "search_spaces", "optimizer", "reports", "templates")


def check_siblings(home: Path) -> None:
    """Raise one clear ImportError when Python would import a foreign package instead of the one in `home`."""
    for name in SIBLINGS:
        spec = PathFinder.find_spec(name)
        found = Path(spec.origin).parent if spec and spec.origin else None
        if found is None or found.resolve() != (home / name).resolve():
            msg = (
                f"pdplan needs its own package {name!r} at {home / name}, but Python finds {found or 'none'}; "
                f"move or uninstall the other one, or install pdplan in an environment of its own"
            )
            raise ImportError(msg)
