"""When the compiled loop serves a run, and that nothing breaks where it cannot; numba itself is not needed here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.simulator import POLICIES, backend, simulate
from costmodel.simulator.compiled import PARTS
from costmodel.simulator.loop import run_loop
from costmodel.simulator.setup import make_world
from tests.simulator_cases import random_fleet, random_trace


class CompilerError(Exception):
    """Stands for numba's own error."""


def njit(function: Callable[..., object] | None = None, **_options: object) -> object:
    """Compile nothing; as numba's, it is a decorator with and without options."""
    return function if function is not None else njit


def numba_of(compiler: Callable[..., object]) -> SimpleNamespace:
    errors = SimpleNamespace(NumbaError=CompilerError)
    return SimpleNamespace(njit=compiler, config=SimpleNamespace(CACHE_DIR=""), core=SimpleNamespace(errors=errors))


def failing(error: Exception, times: int) -> Callable[..., object]:
    """A compiler whose functions fail on their first calls; numba compiles and writes on the first."""
    left = iter(range(times))

    def fails(*_arguments: object) -> None:
        if next(left, None) is not None:
            raise error

    def compiler(function: object | None = None, **_options: object) -> object:
        return fails if function is not None else compiler

    return compiler


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No requests so far, an empty cache, and numba that can be found."""
    monkeypatch.setattr(backend, "_served", backend.Served())
    monkeypatch.setattr(backend, "places", lambda: [tmp_path / "own", tmp_path / "home"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv(backend.VARIABLE)
    backend.compiled_loop.cache_clear()
    backend.cache_folder.cache_clear()
    yield
    backend.compiled_loop.cache_clear()
    backend.cache_folder.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, numba: SimpleNamespace) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda _name: numba)


def keep(version: str = "*") -> None:
    folder = backend.cache_folder()
    assert folder is not None
    this = f"py{sys.version_info.major}{sys.version_info.minor}"
    (folder / f"loop.run_loop-20.{this if version == '*' else version}.1.nbc").write_bytes(b"")


def test_few_requests_are_plain_and_many_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one process add up: the one that takes it to COMPILE_FROM is the first to be compiled."""
    use(monkeypatch, numba_of(njit))
    each = backend.COMPILE_FROM // 4
    assert [backend.chosen_loop(each) is None for _ in range(5)] == [True, True, True, False, False]


def test_a_loop_that_is_kept_is_loaded_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, numba_of(njit))
    keep()
    assert backend.chosen_loop(backend.LOAD_FROM - 1) is None
    assert backend.chosen_loop(1) is not None


def test_requests_that_are_expected_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, numba_of(njit))
    half = backend.COMPILE_FROM // 2
    backend.expect(half)
    assert backend.chosen_loop(half) is None
    backend.expect(half)
    assert backend.chosen_loop(1) is not None


def test_a_loop_kept_by_another_python_does_not_count() -> None:
    keep("py39")
    assert not backend.pays(backend.COMPILE_FROM - 1)
    assert backend.pays(backend.COMPILE_FROM)


def test_plain_python_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, numba_of(njit))
    monkeypatch.setenv(backend.VARIABLE, "python")
    assert backend.chosen_loop(10 * backend.COMPILE_FROM) is None


def test_numba_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, numba_of(njit))
    monkeypatch.setenv(backend.VARIABLE, "numba")
    assert backend.chosen_loop(1) is not None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fast", "PDPLAN_SIMULATOR: 'fast' is neither 'python' nor 'numba'"),
        ("numba", "PDPLAN_SIMULATOR: 'numba' needs numba, which cannot be loaded here: pip install 'pdplan[fast]'"),
    ],
)
def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setenv(backend.VARIABLE, value)
    with pytest.raises(InputError) as caught:
        simulate(random_trace(1), random_fleet(1, POLICIES["vllm_v1"], False))
    assert str(caught.value) == message


def test_without_numba_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert backend.chosen_loop(10 * backend.COMPILE_FROM) is None


@pytest.mark.parametrize("error", [CompilerError(), EOFError(), PermissionError()])
def test_a_numba_that_fails_leaves_plain_python(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Too old a numba, or a file of the cache cut short, or one that cannot be read."""
    use(monkeypatch, numba_of(failing(error, 2)))
    assert backend.chosen_loop(backend.COMPILE_FROM) is None


def test_what_was_compiled_serves_though_it_could_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, numba_of(failing(OSError("No space left on device"), 1)))
    assert backend.chosen_loop(backend.COMPILE_FROM) is not None


def test_where_nothing_can_be_kept_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(backend, "places", lambda: [file, file / "home"])
    assert backend.cache_folder() is None
    assert backend.chosen_loop(10 * backend.COMPILE_FROM) is None


def test_a_package_that_is_read_only_is_kept_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, home = tmp_path / "file", tmp_path / "home"
    file.write_text("")
    (home / "loop-another").mkdir(parents=True)
    monkeypatch.setattr(backend, "places", lambda: [file, home])
    folder = backend.cache_folder()
    assert folder is not None
    assert folder.parent == home
    assert (home / "loop-another").is_dir()  # it may be that of another installation


def test_loops_of_older_sources_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "own" / "loop-older").mkdir(parents=True)
    folder = backend.cache_folder()
    assert [path.name for path in (tmp_path / "own").iterdir()] == [getattr(folder, "name", None)]


def test_a_user_without_a_home_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.undo()
    monkeypatch.setattr(Path, "home", homeless)
    assert [place.name for place in backend.places()] == ["__pycache__"]


def test_copies_call_only_copies_and_do_the_same() -> None:
    """What is compiled is the plain loop: no function of the original is reached from the copy."""
    made: list[FunctionType] = []

    def compiler(function: FunctionType) -> FunctionType:
        made.append(function)
        return function

    loop = backend.compiled_copy(numba_of(compiler), None)
    assert len(made) == len(PARTS)
    for copy in made:
        used = {copy.__globals__.get(name) for name in copy.__code__.co_names if name in copy.__globals__}
        assert not {one for one in used if isinstance(one, FunctionType)} & set(PARTS)
    trace, fleet = random_trace(3), random_fleet(3, POLICIES["vllm_v1"], True)
    worlds = [make_world(trace, fleet, True, 200) for _ in range(2)]
    handled = [one(world, trace.opened, np.inf) for one, world in zip((loop, run_loop), worlds, strict=True)]
    assert handled[0] == handled[1] > trace.size
    assert [request.finish for request in worlds[0].requests] == [request.finish for request in worlds[1].requests]
    assert worlds[0].numbers == worlds[1].numbers
