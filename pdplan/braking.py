"""Ctrl-C once there is something worth keeping: the search ends with it, instead of the program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from .interrupts import end


class Brake(Protocol):
    """As `optimizer.recommend.search.Brake`, which is slow to import."""

    armed: bool
    pulled: bool


@contextmanager
def stop_on_interrupt(brake: Brake) -> Iterator[None]:
    """Pull the brake at the first SIGINT, where it is armed; a second one, or one before that, ends the process."""
    before = signal.getsignal(signal.SIGINT)

    def strike(number: int, frame: FrameType | None) -> None:
        if brake.pulled or not brake.armed:
            end(number, frame)
        brake.pulled = True

    if before is end:
        signal.signal(signal.SIGINT, strike)
    try:
        yield
    finally:
        if before is end:
            signal.signal(signal.SIGINT, before)
