"""How files are written: by Jinja, which quotes whatever it prints, and YAML as data that is dumped.

A template's own text is written as it stands; every `{{ value }}` goes through the quoting of the format. Text that
is of the format already (a host variable that the shell shall expand) is wrapped in `Raw` by the code, never by input.
Templates of YAML are read as data, in which no value can become syntax, and dumped again (`objects`, `manifest`).
All of them know the facts of data/targets.yaml (`fact`), and other templates of YAML as data (`piece`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from yaml.constructor import ConstructorError

from .deployment import fact


class Raw(str):
    """Text that stands in the output as it is."""

    __slots__ = ()


def shell_text(value: Any) -> str:
    """Write a value as one word of a POSIX shell.

    >>> shell_text("$(id)"), shell_text(8)
    ("'$(id)'", '8')
    """
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return shlex.quote(str(value))
    raise TypeError(f"{type(value).__name__} cannot be written as a shell word")


def markdown_text(value: Any) -> str:
    """Write a value as text of a page: no markup, one line.

    >>> markdown_text("a|b"), markdown_text(">99.9 %")
    ('a&#124;b', '>99.9 %')
    """
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str | int | float):
        text = " ".join(str(value).split())
        return re.sub(r"[\\`*{}\[\]<|#&]", lambda match: f"&#{ord(match[0])};", text)
    raise TypeError(f"{type(value).__name__} cannot be written on a page")


def hidden(value: Any) -> str:
    """Write a value so that YAML cannot read anything into it; `_reveal` turns it back."""
    return value if isinstance(value, Raw) else f"\ue000{json.dumps(value).encode().hex()}\ue001"


_HIDDEN: Final = re.compile("\ue000([0-9a-f]+)\ue001")


def _reveal(value: Any) -> Any:
    """What a template of YAML says, with its values: one that stands alone as it is, others as text.

    A key that begins with + is not a key: the entries of its value stand in its place.
    """
    if isinstance(value, dict):
        shown_pairs = ((_reveal(key), _reveal(inner)) for key, inner in value.items())
        pairs = (inner.items() if key.startswith("+") else [(key, inner)] for key, inner in shown_pairs)
        return {key: inner for entries in pairs for key, inner in entries}
    if isinstance(value, list):
        return [_reveal(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if alone := _HIDDEN.fullmatch(value):
        return json.loads(bytes.fromhex(alone[1]))
    return _HIDDEN.sub(lambda match: str(json.loads(bytes.fromhex(match[1]))), value)


_QUOTING: Final[dict[str, Callable[[Any], str]]] = {
    ".sh": shell_text,
    ".env": shell_text,
    ".cfg": shell_text,  # HAProxy quotes as a shell does
    ".md": markdown_text,
    ".yaml": hidden,
}


def render(template: str, **values: Any) -> str:
    """Fill a template, such as "vllm/router.sh", in the quoting of its format."""
    ending = template[template.rindex(".") :]
    return _environment(ending).get_template(f"{template}.j2").render(**values)


def objects(template: str, **values: Any) -> list[Any]:
    """The documents of a template of YAML, such as "kubernetes/pod.yaml", as data."""
    return [_reveal(document) for document in documents_of(render(template, **values))]


def manifest_of(template: str, **values: Any) -> str:
    """The file of YAML that a template makes, whose first line is a comment about it; empty where it has no objects."""
    text = render(template, **values)
    documents = [_reveal(document) for document in documents_of(text)]
    return manifest(_reveal(text.partition("\n")[0].removeprefix("# ")), *documents) if documents else ""


def documents_of(text: str) -> list[Any]:
    """The documents of a text of YAML, as data, without empty ones; YAMLError for an alias or a key that recurs."""
    return [document for document in yaml.load_all(text, Loader=_PlainLoader) if document is not None]


@cache
def _environment(ending: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("templates", ""),
        autoescape=False,  # noqa: S701 - not HTML: `finalize` quotes every value for its format
        undefined=StrictUndefined,
        finalize=_QUOTING[ending],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"fact": fact, "piece": lambda template, **values: objects(template, **values)[0]}
    return environment


def pod_text(text: str) -> str:
    """Keep Kubernetes from filling in variables in commands, arguments and environment: it takes $$( for $(.

    >>> pod_text("$(HOME)")
    '$$(HOME)'
    """
    return text.replace("$(", "$$(")


_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER):  # type: ignore[misc]
    """YAML in which nothing stands for another thing, and texts of several lines are blocks."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - what the base class asks
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def manifest(about: str, *documents: Any) -> str:
    r"""Write objects as a file of YAML that begins with a sentence of ours about it.

    >>> print(manifest("Two.", {"a": ["--x", "1"]}, {"b": None}), end="")
    # Two.
    a:
    - --x
    - '1'
    ---
    b: null
    """
    texts = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9) for document in documents
    ]
    return f"# {about}\n" + "---\n".join(texts)


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _PlainLoader(_LOADER):  # type: ignore[misc]
    """YAML in which nothing stands for another thing, or hides it."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node in self.constructed_objects:
            raise ConstructorError(None, None, "an alias repeats what stands here", node.start_mark)
        return super().construct_object(node, deep)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise ConstructorError(None, None, "a key stands twice in the mapping that begins here", node.start_mark)
        return mapping
