"""Have an engine's own argument parser read command lines; run by `real_parsers.py` with the engine's interpreter.

    python parser_probe.py PROGRAM STUBS < argvs.json

PROGRAM: vllm, sglang, dynamo.vllm, dynamo.sglang, dynamo.frontend, vllm-router or sglang-router. STUBS: modules that
are not installed here, separated by commas; an empty module that has any name takes their place. Prints JSON: for each
list of arguments null, or what the parser says against it. Exit code 9 names a module that is missing besides.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
from collections.abc import Callable, Sequence
from unittest.mock import MagicMock

MISSING = 9
GPU_MODULES = ("vllm._C", "vllm._moe_C", "vllm._rs", "vllm.vllm_flash_attn", "sgl_kernel")
"""Compiled for GPUs, left out of what is unpacked; no parser needs them."""
Parse = Callable[[list[str]], object]


class _Stub(types.ModuleType):
    __path__: Sequence[str] = ()
    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module where nothing else was found."""

    def __init__(self, stubs: Sequence[str]) -> None:
        self.stubs = (*GPU_MODULES, *filter(None, stubs))

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        stubbed = any(name == stub or name.startswith(f"{stub}.") for stub in self.stubs)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if stubbed else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def _on_a_cpu() -> None:
    """vLLM looks for a GPU when it makes its parser."""
    import vllm.platforms as platforms  # type: ignore[import-not-found]
    from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]

    platforms._current_platform = CpuPlatform()


def _vllm() -> Parse:
    _on_a_cpu()
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    serve = importlib.import_module("vllm.entrypoints.cli.serve").ServeSubcommand()
    serve.subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    return lambda argv: parser.parse_args(["serve", *argv])


def _sglang() -> Parse:
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser.parse_args


class _FetchingError(Exception):
    """All arguments are read and checked against each other; the model would be fetched next."""


def _dynamo_sglang() -> Parse:
    module = importlib.import_module("dynamo.sglang.args")

    async def fetch(*_: object, **__: object) -> None:
        raise _FetchingError

    def parse(argv: list[str]) -> None:
        with contextlib.suppress(_FetchingError):
            asyncio.run(module.parse_args(argv))

    assert hasattr(module, "fetch_model")
    module.fetch_model = fetch  # type: ignore[attr-defined]
    return parse


def _dynamo_vllm() -> Parse:
    _on_a_cpu()
    parse: Parse = importlib.import_module("dynamo.vllm.args").parse_args
    return parse


def _dynamo_frontend() -> Parse:
    module = importlib.import_module("dynamo.frontend.main")

    def parse(argv: list[str]) -> object:
        sys.argv = ["dynamo.frontend", *argv]
        return module.parse_args()

    return parse


def _router(module: str) -> Callable[[], Parse]:
    def load() -> Parse:
        parse: Parse = importlib.import_module(module).parse_router_args
        return parse

    return load


PARSERS: dict[str, Callable[[], Parse]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "dynamo.vllm": _dynamo_vllm,
    "dynamo.sglang": _dynamo_sglang,
    "dynamo.frontend": _dynamo_frontend,
    "vllm-router": _router("vllm_router.launch_router"),
    "sglang-router": _router("sglang_router.launch_router"),
}


def fault(parse: Parse, argv: list[str]) -> str | None:
    """What a parser says against arguments; None where it takes them."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            parse(argv)
        except SystemExit as end:
            last = said.getvalue().strip().splitlines()[-1:]
            return None if not end.code else "".join(last) or f"exit code {end.code}"
        except Exception as error:  # noqa: BLE001 - whatever a parser raises is its answer
            return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    program, stubs = sys.argv[1:]
    argvs = json.load(sys.stdin)
    sys.meta_path.append(_Finder(stubs.split(",")))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parse = PARSERS[program]()
    except ModuleNotFoundError as error:
        print(error.name)
        sys.exit(MISSING)
    print(json.dumps([fault(parse, argv) for argv in argvs]))


if __name__ == "__main__":
    main()
