"""Condense the flag dumps of the serving engines into the facts that tests compare the files of deployments with.

    python benchmarks/make_flag_facts.py DATA [--check]

reads DATA/deploy/{vllm_flags,vllm_kv_transfer,sglang_flags_0.5.23,dynamo_flags_1.6.1}.json, which were dumped from
the engines' own argument parsers, and writes tests/engine_flags.json: names, types and choices by version of the flags
that deployments may state, no help texts and no defaults. With --check nothing is written; exit code 1 says that the
file is out of date.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
DEPLOY, OUTPUT = ROOT / "reports" / "deploy", ROOT / "tests" / "engine_flags.json"
SOURCES = (DEPLOY / "data" / "targets.yaml", *sorted(DEPLOY.glob("*.py")))
STATED = {name for path in SOURCES for name in re.findall(r"--[a-z0-9-]+", path.read_text("utf-8"))}
"""Flags that deployments may state."""
SWITCHES = {"_StoreTrueAction", "bool"}
SGLANG_0_5_21 = {"--enable-dp-attention": "switch"}
"""What the parser of SGLang 0.5.21 has beside the flags of the dump, of those that are written."""
SGLANG_LATER = frozenset(("--attn-dp-size",))
"""Flags of the dump that it does not have yet, of those that are written, as its `add_cli_args` says."""


def vllm_facts(folder: Path) -> dict[str, Any]:
    dump = json.loads((folder / "vllm_flags.json").read_text("utf-8"))
    transfer = json.loads((folder / "vllm_kv_transfer.json").read_text("utf-8"))
    versions = dump["versions"]
    flags: dict[str, Any] = {version: {} for version in versions}
    for name in STATED & dump["flags"].keys():
        entry = dump["flags"][name]
        for version in entry["versions"]:
            said = {**entry, **entry.get("differs", {}).get(version, {})}
            kind = "switch" if said["kind"] in SWITCHES else _kind(said["type"])
            flags[version][name] = _fact(kind, said["choices"])
    connectors = {version: transfer[version]["connectors"] for version in versions}
    return {"source": dump["parser"], "flags": _shared(flags), "connectors": connectors}


def sglang_facts(folder: Path) -> dict[str, Any]:
    dump = json.loads((folder / "sglang_flags_0.5.23.json").read_text("utf-8"))
    flags = {}
    for name, entry in dump["flags"].items():
        if name in STATED and entry.get("no_cli") != "True":
            kind = "switch" if entry["type"] in {"bool", "Optional[bool]"} else _kind(entry["type"])
            flags[name] = _fact(kind, _choices(entry.get("choices")) or _literals(entry["type"]))
    older = {name: fact for name, fact in flags.items() if name not in SGLANG_LATER} | SGLANG_0_5_21
    return {"source": dump["source"], "flags": _shared({"0.5.21": older, dump["version"]: flags})}


def dynamo_facts(folder: Path) -> dict[str, Any]:
    dump = json.loads((folder / "dynamo_flags_1.6.1.json").read_text("utf-8"))
    programs = {}
    for program, entries in dump["flags"].items():
        programs[program] = {}
        for entry in entries:
            name = entry["flag"].split()[-1]
            if name in STATED:
                kind = "switch" if entry.get("neg") or "action" in entry else _kind(entry.get("type"))
                programs[program][name] = _fact(kind, _choices(entry.get("choices")))
    source = f"{dump['package']} {dump['version']}: {dump['note']}"
    return {"source": source, "flags": {dump["version"]: programs}}


def _fact(kind: str, choices: list[Any] | None) -> Any:
    """The kind alone, or the values allowed."""
    return sorted(map(str, choices)) if choices else kind


def _kind(kind: str | None) -> str:
    plain = (kind or "str").removeprefix("Optional[").removesuffix("]")
    return plain if plain in {"int", "float"} else "int" if plain.startswith("human_readable_int") else "str"


def _choices(text: str | None) -> list[Any] | None:
    """The values of a choices expression, where the dump has them literally and not as a name."""
    try:
        found = ast.literal_eval(text or "None")
    except (ValueError, SyntaxError):
        return None
    return list(found) if isinstance(found, list | tuple) else None


def _literals(kind: str) -> list[Any] | None:
    inner = kind.removeprefix("Optional[")
    if not inner.startswith("Literal["):
        return None
    found = ast.literal_eval(inner[len("Literal") : inner.index("]") + 1])
    return [value for value in found if value is not None]


def _shared(flags: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Flags by name: the fact once where all versions agree, else by version."""
    names = sorted({name for entries in flags.values() for name in entries})
    condensed: dict[str, Any] = {}
    for name in names:
        facts = {version: entries[name] for version, entries in flags.items() if name in entries}
        same = len(facts) == len(flags) and len({json.dumps(fact) for fact in facts.values()}) == 1
        condensed[name] = next(iter(facts.values())) if same else facts
    return {"versions": list(flags), "names": condensed}


def _text(facts: dict[str, Any]) -> str:
    """JSON with one flag a line, so that a change is a readable diff."""
    lines = json.dumps(facts, indent=1, ensure_ascii=True)
    short = []
    for line in lines.splitlines():
        bare = line.strip()
        inside = bool(short) and short[-1].rstrip().endswith("[")
        if (inside or (short and short[-1].count("[") > short[-1].count("]"))) and bare:
            short[-1] += (" " if short[-1].endswith(",") else "") + bare
        else:
            short.append(line)
    return "\n".join(short) + "\n"


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Only compare with the file.")
def main(data: Path, check: bool) -> None:
    folder = data / "deploy"
    text = _text({"vllm": vllm_facts(folder), "sglang": sglang_facts(folder), "dynamo": dynamo_facts(folder)})
    if check:
        same = OUTPUT.read_text("utf-8") == text
        click.echo(f"{OUTPUT.name}: {'up to date' if same else 'out of date'}")
        sys.exit(0 if same else 1)
    OUTPUT.write_text(text, "utf-8")
    click.echo(f"wrote {OUTPUT} ({len(text)} bytes)")


if __name__ == "__main__":
    main()
