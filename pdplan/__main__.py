"""Entry of `pdplan` and `python -m pdplan`: handles Ctrl-C first, as importing the program takes a while."""

from __future__ import annotations

import os

from pdplan.exits import end_on_interrupt


def main() -> None:
    """Run the program and exit."""
    end_on_interrupt()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # matrices are small: more threads wait more than they compute
    from pdplan.cli import main as program

    program()


if __name__ == "__main__":
    main()
