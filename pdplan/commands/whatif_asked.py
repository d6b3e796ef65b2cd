"""What `pdplan whatif` was asked, as its options say it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import InputError
from costmodel.metric import METRICS
from costmodel.quoting import shown

if TYPE_CHECKING:
    from optimizer.whatif.scenario import Depth


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, by the names that it gives them.

    axes, names: of a sweep, with gap, its files, jobs, journal, backend and address; looks: fleets that are simulated
    at most, for each answer.
    """

    axes: tuple[str, ...]
    names: tuple[str, ...]
    break_even: str | None
    between: str | None
    shadow: bool
    swing: float | None
    slack: float | None
    gap: bool | None
    full: bool
    simulated: bool
    looks: int
    csv_file: Path | None
    parquet_file: Path | None
    html_file: Path | None
    jobs: int | None
    journal: Path | None
    backend: str
    address: str | None

    @property
    def files(self) -> dict[str, Path | None]:
        """Files of a sweep's rows, by option."""
        return {"--csv": self.csv_file, "--parquet": self.parquet_file, "--html": self.html_file}

    def depth(self) -> Depth:
        """How each scenario is solved."""
        from optimizer.whatif.scenario import Depth

        return Depth.SIMULATED if self.simulated else Depth.FULL if self.full else Depth.SIMPLE

    def check_backend(self) -> None:
        """Raise InputError for a cluster without its address, or an address without a cluster."""
        if (self.address is None) == (self.backend == "dask"):
            raise InputError("--address names Dask's scheduler: state it with --backend dask, and only there")

    def check_any(self, *, verifies: bool) -> None:
        """Raise InputError where nothing is asked, or more than what is asked has use for; verifies: --verify stands.

        Whole searches take no second looks: neither the rows of a sweep nor the ends of a tornado.
        """
        if self.break_even is not None and not self.break_even.strip():
            raise InputError(
                f"--break-even {shown(self.break_even)} names no lever; state one, such as price.H200 or rate"
            )
        answered = self.swing is not None or self.slack is not None
        if not (self.axes or self.names or self.break_even or self.shadow or answered):
            raise InputError(
                "nothing is asked; state --vary, such as --vary price.H200=1:8:8, --scenario or --break-even"
            )
        for flag, path in self.files.items():
            if path is not None and not (self.axes or self.names):
                raise InputError(f"{flag} {path} is for the rows of a sweep; state --vary or --scenario with it")
        if verifies and self.looks and (self.full or self.simulated) and (self.axes or self.names or self.swing):
            raise InputError(
                f"--verify {self.looks} simulates fleets of one or two pools found by formula, so it does not go with "
                f"{'--simulate' if self.simulated else '--full'}; --simulate alone proves every fleet by simulation"
            )
        if self.between is not None and not self.break_even:
            raise InputError("--between is the range of --break-even, which is not stated")


@dataclass(frozen=True, slots=True)
class Told:
    """An answer: its key in the JSON document, its record, its text, and whether there is any fleet."""

    key: str
    record: object
    text: str
    any_fleet: bool


_LIKE = {"rate": "5/s:40/s", "attainment": "50%:99%"} | {str(metric): row.span for metric, row in METRICS.items()}
"""Ranges of levers whose values have units."""


def bounds_of(text: str, flag: str, key: str) -> tuple[float, float]:
    """Read LOW:HIGH in units of a lever.

    >>> bounds_of("300ms:2s", "--between", "ttft"), bounds_of("50%:99%", "--between", "attainment")
    ((0.3, 2.0), (0.5, 0.99))
    """
    from search_spaces.levers import number_of
    from search_spaces.quantities import QuantityError

    low, colon, high = text.partition(":")
    if not (low and colon and high):
        raise InputError(f"{flag} {shown(text)} is not LOW:HIGH, such as {_LIKE.get(key, '1:8')}")
    try:
        found = number_of(key, low), number_of(key, high)
    except QuantityError as error:
        raise InputError(f"{flag} {shown(text)} is not LOW:HIGH in units of {key}: {error}") from None
    if not -math.inf < found[0] < found[1] < math.inf:
        raise InputError(f"{flag} {shown(text)}: LOW must be below HIGH, and both finite")
    return found
