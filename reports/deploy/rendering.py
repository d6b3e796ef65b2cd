"""Jinja for configuration files: whatever a template prints is quoted for its format, so no value can be code.

A template's own text is written as it stands; every `{{ value }}` goes through the quoting of the format. Text that
is of the format already (a host variable that the shell shall expand) is wrapped in `Raw` by the code, never by input.
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

_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./+-]*(:[A-Za-z0-9_./-]+)*")
"""Strings that YAML may hold without quotes, unless they are words that it gives a meaning."""
_SIMPLE: Final = re.compile(r"[ !#-\[\]-~]*")
"""Printable ASCII without double quotes and backslashes: between double quotes it stands for itself."""
_WORDS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"])
LONGEST_LINE: Final = 10**9


class Raw(str):
    """Text that stands in the output as it is."""

    __slots__ = ()


def yaml_text(value: Any) -> str:
    """Write a value as one line of YAML.

    >>> yaml_text("a: b"), yaml_text(["vllm", 8, 0.9]), yaml_text({"no": True})
    ('"a: b"', '[vllm, 8, 0.9]', '{"no": true}')
    """
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, bool | int) or value is None:
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(yaml_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml_text(key)}: {yaml_text(inner)}" for key, inner in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} cannot be written as YAML")


def _float_text(value: float) -> str:
    """Write a number that YAML 1.1 takes for one: its mantissa needs a point where there is an exponent.

    >>> _float_text(1e-05), _float_text(0.9)
    ('1.0e-05', '0.9')
    """
    mantissa, e, exponent = json.dumps(value, allow_nan=False).partition("e")
    sign = "+" if e and exponent[0] not in "+-" else ""
    return mantissa + (".0" if "." not in mantissa else "") + e + sign + exponent


def _is_plain(text: str) -> bool:
    return _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS


def _quoted(text: str) -> str:
    if '"' in text and text.isascii() and text.isprintable():  # JSON reads best between single quotes
        return "'" + text.replace("'", "''") + "'"
    if _SIMPLE.fullmatch(text):
        return f'"{text}"'
    written: str = yaml.safe_dump(text, default_style='"', width=LONGEST_LINE)
    return written.removesuffix("\n")


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

    >>> markdown_text("a|b")
    'a&#124;b'
    """
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str | int | float):
        text = " ".join(str(value).split())
        return re.sub(r"[\\`*{}\[\]<>|#&]", lambda found: f"&#{ord(found[0])};", text)
    raise TypeError(f"{type(value).__name__} cannot be written on a page")


_QUOTING: Final[dict[str, Callable[[Any], str]]] = {
    ".yaml": yaml_text,
    ".sh": shell_text,
    ".env": shell_text,
    ".cfg": shell_text,  # HAProxy quotes as a shell does
    ".md": markdown_text,
}


def render(template: str, **values: Any) -> str:
    """Fill a template, such as "vllm/router.sh", in the quoting of its format."""
    ending = template[template.rindex(".") :]
    return _environment(ending).get_template(f"{template}.j2").render(**values)


@cache
def _environment(ending: str) -> Environment:
    return Environment(
        loader=PackageLoader("templates", ""),
        autoescape=False,  # noqa: S701 - not HTML: `finalize` quotes every value for its format
        undefined=StrictUndefined,
        finalize=_QUOTING[ending],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def compose_text(text: str) -> str:
    """Keep docker compose from filling in variables: it takes $$ for a dollar.

    >>> compose_text("${HOME}")
    '$${HOME}'
    """
    return text.replace("$", "$$")


def pod_text(text: str) -> str:
    """Keep Kubernetes from filling in variables in commands, arguments and environment: it takes $$( for $(.

    >>> pod_text("$(HOME)")
    '$$(HOME)'
    """
    return text.replace("$(", "$$(")
