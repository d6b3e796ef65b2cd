"""Options that commands share, the types of their values, and the files that answers go to."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from costmodel.accelerator import PriceBasis
from costmodel.errors import InputError, nearest_name, shown
from reports.text import clean, significant
from search_spaces import bounds
from search_spaces.bounds import ALTERNATIVE, CONFIDENCE, LOOKS, QUICK, REQUEST_RATE, TIME_LIMIT, Bounds
from search_spaces.files import check_name, shown_path

from .console import Console

if TYPE_CHECKING:
    from search_spaces.problem import Problem

Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

pass_console = click.make_pass_decorator(Console, ensure=True)


class Flags(SimpleNamespace):
    """The command line of a command, by the names of its options."""


def console_options(function: Function) -> Function:
    """Add -q, -v and --no-color; they work before and after the command's name."""
    for flags, attribute, text in (
        (("--no-color",), "plain", "No color, even on a terminal (also: NO_COLOR=1)."),
        (("-v", "--verbose"), "verbose", "The whole answer, more narration on stderr, traceback of a bug."),
        (("-q", "--quiet"), "quiet", "No narration on stderr."),
    ):
        function = click.option(
            *flags, is_flag=True, expose_value=False, help=text, is_eager=True, callback=_setter(attribute)
        )(function)
    return function


def with_console(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the console, which the command gets as its first argument."""
    return console_options(pass_console(function))


def _setter(attribute: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    def store(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
        if value:
            setattr(context.ensure_object(Console), attribute, True)
        return value

    return store


QUOTES = ".csv"
"""Ending of a file of quotes (`search_spaces.quotes.ENDING`)."""


class Choice(click.Choice[str]):
    """One of a few names; the refusal of another ends with the nearest. same: other spellings of some of them."""

    def __init__(self, choices: Sequence[str], same: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(choices)
        self.same = same

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name as it is listed."""
        return super().convert(self.same.get(str(value).lower(), value), param, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Click's sentence, with the nearest name where there is one."""
        close = nearest_name(str(value), self.choices)
        sentence = super().get_invalid_choice_message(value, ctx)
        return f"{sentence.rstrip('.')}; did you mean {shown(close)}?" if close else sentence


class Prices(Choice):
    """A basis of the catalog's quotes, or the name of a file of one's own."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The basis, or the absolute path of the file, as workload files are read relative to their folder."""
        own = isinstance(value, str) and value.lower().endswith(QUOTES)
        return str(Path(value).absolute()) if own else super().convert(value, param, ctx)


Callback = Callable[[click.Context, click.Parameter, str | None], Any]


def read_as(reader: Callable[[], Any]) -> Callback:
    """A callback that reads a text as a key of a workload file is read; its refusal names the option.

    reader: makes the reader, whose modules are slow to import.
    """

    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        from search_spaces.sources import parse_value

        parsed_value: object = None
        with suppress(InputError):  # a text that is no YAML is refused as it is
            parsed_value = parse_value(value)
        try:
            return reader().read(value if parsed_value is None else parsed_value)
        except InputError as error:
            raise click.BadParameter(str(error)) from None

    return read


def _quantity(kind: str, limits: Bounds) -> Any:
    from search_spaces.fields import quantity
    from search_spaces.quantities import Kind

    return quantity(Kind(kind), limits)


seconds = read_as(lambda: _quantity("duration", Bounds(1e-3, TIME_LIMIT.high)))
"""Turns a time such as 90s or 500ms into seconds [s]."""
per_second = read_as(lambda: _quantity("rate", REQUEST_RATE))
"""Turns a rate such as 20/s or 600/min into arrivals per second [1/s]."""


def share_within(limits: Bounds, negative: str = "") -> Callback:
    """Turn a share such as 5% or 0.05 into a number within the limits [1]; negative: what one below 0 is for."""

    def reader() -> Any:
        from search_spaces.fields import share

        return share(limits, negative=negative)

    return read_as(reader)


def _weight_dtypes() -> Any:
    """Precisions of weights that engines serve: fp16 and fp32 are loaded into 16 bit."""
    from search_spaces.fields import choice
    from search_spaces.search_space import SIXTEEN_BIT, WEIGHT_DTYPES

    return choice(*WEIGHT_DTYPES, same=SIXTEEN_BIT)


def pairs(text: str, flag: str, example: str = "") -> dict[str, str]:
    """Split the KEY=VALUE pairs of one flag; example: what the refusal of another text shows.

    >>> pairs("isl=prompt, osl=answer", "--columns")
    {'isl': 'prompt', 'osl': 'answer'}
    """
    settings, hint = {}, f", such as {example}" if example else ""
    for pair in filter(str.strip, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"{flag} {shown(pair.strip())} is not KEY=VALUE{hint}")
        if key.strip() in settings:
            raise InputError(f"{flag} states {key.strip()} twice")
        settings[key.strip()] = value.strip()
    return settings


def collected(texts: Iterable[str], reader: Callable[[str], Value]) -> list[Value]:
    """Read every text; raise InputError for all that cannot be read, one a line."""
    values: list[Value] = []
    faults: list[str] = []
    for text in texts:
        try:
            values.append(reader(text))
        except InputError as error:
            faults.append(str(error))
    if faults:
        raise InputError("\n".join(dict.fromkeys(faults)))
    return values


FILE_SETTINGS = frozenset(
    {"prices", "catalog", "model.config", "model.architecture"}
    | {f"workload.{key}" for key in ("lengths.histogram", "lengths.trace.path", "recorded", "recorded.path")}
)
"""Keys of a workload file whose value may name a file: on a command line that is relative to the current folder."""
FILE_ENDINGS = (".csv", ".yaml", ".yml", ".json", ".jsonl", ".gz")


def parse_settings(settings: tuple[str, ...], **flags: str | float | None) -> dict[str, str]:
    """Split KEY=VALUE flags; flags: others that override a key of the file, None where they were not given.

    A key that is set again counts where it stands last, after other spellings of it.

    >>> parse_settings(("workload.request_rate=25",), prices="spot", target=None)
    {'workload.request_rate': '25', 'prices': 'spot'}
    >>> parse_settings(("slo.0.ttft=1s", "slo.chat.ttft=2s", "slo.0.ttft=3s"))
    {'slo.chat.ttft': '2s', 'slo.0.ttft': '3s'}
    >>> parse_settings(("prices=my.csv",))["prices"] == str(Path.cwd() / "my.csv")
    True
    """
    pairs = dict[str, str]()
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set {shown(setting)} is not KEY=VALUE, such as workload.request_rate=25")
        pairs.pop(key.strip(), None)
        is_file = key.strip() in FILE_SETTINGS and value.strip().lower().endswith(FILE_ENDINGS)
        pairs[key.strip()] = str(Path(value.strip()).absolute()) if is_file else value.strip()
    return pairs | {key: str(value) for key, value in flags.items() if value is not None}


class UsablePath(click.Path):
    """The name of a file or folder that may exist; one that cannot be looked up or written down is a usage error."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Look the name up: no name, a NUL in it, one too long, a folder that may not be searched, a ring of links."""
        check_name(value)
        if not str(value).strip():
            self.fail("the name of a file or folder is empty", param, ctx)
        try:
            os.stat(value)  # noqa: PTH116 - Path.exists raises for some of these and hides others
        except (FileNotFoundError, NotADirectoryError):
            pass
        except ValueError:
            self.fail(f"'{shown_path(value)}' cannot be the name of a file", param, ctx)
        except OSError as error:
            self.fail(f"'{shown_path(value)}' cannot be used: {error.strerror}", param, ctx)
        return Path(value)


class Whole(click.ParamType[int]):
    """A whole number within bounds, read as in a file."""

    name = "n"

    def __init__(self, limits: Bounds) -> None:
        self.limits = limits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number."""
        from search_spaces.fields import count

        text = str(value).strip()
        try:
            number: int = count(self.limits).read(int(text) if text.lstrip("-").isdecimal() else float(text))
        except InputError as error:
            self.fail(str(error), param, ctx)
        except ValueError:
            self.fail(f"{shown(value)} is not a whole number", param, ctx)
        return number


PATH = UsablePath()
DEGREE = Whole(bounds.DEGREE)


def replica_options(function: Function) -> Function:
    """Add what a replica is made of: --model, --gpu, --catalog, and how its GPUs share the work."""
    degrees = {"tp": "Tensor", "pp": "Pipeline", "ep": "Expert", "dp": "Data"}
    for flag, name in reversed(degrees.items()):
        of = " of the attention" if flag == "dp" else ""
        text = f"{name} parallelism{of}."
        function = click.option(f"--{flag}", type=DEGREE, default=1, help=text)(function)
    gpu = click.option("--gpu", required=True, metavar="NAME", help="Accelerator; pdplan gpus lists them.")
    model = click.option("--model", required=True, metavar="NAME", help="Catalog name, or path to a config.json.")
    return model(gpu(catalog_option(function)))


catalog_option = click.option(
    "--catalog", type=PATH, metavar="FILE", help="YAML file that changes or adds accelerators of the catalog."
)
weight_dtype_option = click.option(
    "--weight-dtype",
    callback=read_as(_weight_dtypes),
    metavar="DTYPE",
    help="bf16, fp8, int8, int4 or fp4; default: the checkpoint's.",
)


def force_option(text: str = "Replace an existing file.") -> Decorator:
    """Add --force, of which the console keeps track; text: its help."""
    return click.option("--force", is_flag=True, expose_value=False, callback=_setter("force"), help=text)


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_setter("json_only"),
    help="Print one JSON document and nothing else.",
)
prices_option = click.option(
    "--prices",
    type=Prices([basis.value for basis in PriceBasis]),
    metavar="BASIS|FILE",
    help="Catalog quotes to use as prices: on-demand, reserved, spot or tco; or a CSV file of your own quotes. "
    "Default: on-demand, unless a workload file states another. A basis is refused if the workload file names a "
    "file of quotes.",
)
alternative_option = click.option(
    "--alternative",
    type=Whole(ALTERNATIVE),
    default=1,
    help="Take fleet N of the plan, as the report numbers them; 1 is the recommended one.",
)
confidence_option = click.option(
    "--confidence",
    callback=share_within(CONFIDENCE, QUICK),
    metavar="SHARE",
    help="Plan for slow GPUs: step times at the upper end of the interval that covers this share of past predictions, "
    "such as 0.9; overrides the file's.",
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one value of FILE by its dotted path, such as workload.request_rate=25/s or "
    "accelerators.H100.inventory=8; may be repeated.",
)


def verify_option(default: int) -> Callable[[Function], Function]:
    """Add --verify with so many fleets by default."""
    return click.option(
        "--verify", "looks", type=Whole(LOOKS), default=default,
        help="Simulate up to N of the fleets, and replace those that miss an SLO; 0: none.",
    )  # fmt: skip


# --- answers and the files that they go to ----------------------------------------------------------------------------


def file_option(form: str, text: str) -> Decorator:
    """Add an option that names a file for the answer in one form; text: its help."""

    def store(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
        if value is not None:
            context.ensure_object(Console).files[form] = f"--{form}", value

    return click.option(f"--{form}", type=PATH, metavar="OUT", expose_value=False, callback=store, help=text)


def answer_options(page: str, *others: Decorator, rows: str = "", parquet: bool = False) -> Decorator:
    """Add --html, --json, --force and those of the console.

    page, rows: what --html and --csv write, as their help says; parquet: --parquet too; others: options that stand
    between those of files and --json.
    """
    options = [file_option("csv", rows)] if rows else []
    options += [file_option("parquet", "The same as Parquet (needs pyarrow).")] if parquet else []
    options += [file_option("html", page), *others, json_option, force_option(), with_console]
    return lambda function: functools.reduce(lambda command, option: option(command), reversed(options), function)


def problem_options(
    page: str, *others: Decorator, rows: str = "", parquet: bool = False, reads: Sequence[str] = ()
) -> Decorator:
    """Add FILE, --set, --prices and the options of an answer; the command gets the problem of FILE, read and checked.

    page, others, rows, parquet: as of `answer_options`; reads: options that name files which are read too.
    """

    def add(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def command(
            console: Console, /, *, file: Path, settings: tuple[str, ...], prices: str | None, **others: Any
        ) -> int:
            console.check_files({"FILE": file, **{f"--{name}": others[name] for name in reads}})
            problem = random_problem(console, file, settings, prices)
            return function(console, problem, file=file, **others)

        named = click.argument("file", type=PATH)(command)
        return answer_options(page, *others, prices_option, set_option, rows=rows, parquet=parquet)(named)

    return add


def view_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add -o, --format, --json, --alternative, --force and those of the console; the first two say what is shown."""

    @click.option("-o", "--output", type=PATH, metavar="FILE", help="Write to FILE, not to stdout.")
    @click.option(
        "--format",
        "form",
        type=Choice(["text", "html", "md", "json"]),
        help="Default: by the ending of -o, or text on stdout.",
    )
    @json_option
    @alternative_option
    @force_option()
    @with_console
    @wraps(function)
    def command(console: Console, /, *, output: Path | None, form: str | None, **values: Any) -> Any:
        if console.json_only and form not in {None, "json"}:
            raise InputError(f"--json is one form of the answer and --format {form} another; leave one out")
        endings = {".html": "html", ".htm": "html", ".json": "json", ".md": "md", ".txt": "text", "": "text"}
        ending = output.suffix.lower() if output else ""
        form = form or ("json" if console.json_only else endings.get(ending))
        if form is None:
            views = "end it in .html, .md, .json or .txt, or state --format"
            raise InputError(f"-o {output}: no view ends in {ending}; {views}")
        console.screen = form if output is None else ""
        if output is not None:
            console.files[form] = "-o", output
        return function(console, **values)

    return command


def random_problem(console: Console, file: Path, settings: tuple[str, ...], prices: str | None = None) -> Problem:
    """The problem of a file, with random requests in place of recorded ones; where it has some, that is noted."""
    from search_spaces.loader import load_problem, without_recording

    problem = load_problem(file, overrides=parse_settings(settings, prices=prices))
    if problem.recorded is None:
        return problem

    console.note(
        f"Note: requests are random here, with burstiness {significant(problem.workload.burstiness)}; pdplan optimize "
        f"simulates those of {clean(problem.recorded.source, 60)} themselves, and may choose another fleet."
    )
    return without_recording(problem)
