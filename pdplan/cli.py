"""The `pdplan` program: commands, exit codes and error messages.

0 done, a plan was found · 2 usage or bad input · 3 no fleet meets the SLOs · 70 a bug of pdplan
130 interrupted · 141 the reader of stdout went away
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from costmodel.errors import BelowFloorError, InfeasibleError, InputError, PdplanError, nearest_name, shortened
from costmodel.words import join_words
from pdplan import __version__
from search_spaces.files import LONGEST_SHOWN, shown_path

from .commands.catalog import gpus, models
from .commands.optimize import evaluate, explain, optimize
from .commands.plan import autoscale, compare, deploy, report, resilience, simulate
from .commands.predictions import calibrate, estimate, validate
from .commands.whatif import buy, frontier, map_command, whatif
from .commands.workload import init, schema, workload
from .console import Console, ReaderGoneError, guard_streams, harmless
from .exits import ExitCode, end_on_interrupt
from .options import console_options

LONGEST_LINE = 300 + LONGEST_SHOWN
"""Characters of a line of a refusal: a sentence, and the name of a file."""
LONGEST_USAGE = 250
"""Characters of a sentence of click's, which quotes what was typed in full."""


class InOrder(click.Group):
    """A group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names as added."""
        return list(self.commands)


SHOWN_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=InOrder, context_settings=SHOWN_HELP)
@click.version_option(__version__, "-V", "--version", prog_name="pdplan")
@console_options
def cli() -> None:
    """Examples:

    \b
      pdplan optimize examples/chat.yaml -o plan               the cheapest fleet, and why
      pdplan workload trace.csv -o workload.yaml               from a request trace to a problem
      pdplan estimate --model Llama-3.1-70B --gpu H100 --tp 4  one replica in numbers

    pdplan finds which GPUs, how many, in which roles, with which engine settings, serve an LLM
    workload within its latency objectives (SLOs) for the fewest dollars.

    \b
    Exit codes: 0 done, 2 bad input, 3 SLO missed or undecided, or no fleet meets it, 70 a bug of pdplan,
    130 interrupted.
    """


for command in (
    optimize,
    evaluate,
    simulate,
    explain,
    buy,
    autoscale,
    resilience,
    whatif,
    frontier,
    map_command,
    init,
    schema,
    workload,
    gpus,
    models,
    estimate,
    calibrate,
    report,
    compare,
    deploy,
    validate,
):
    cli.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; what went wrong is said in one sentence on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    console = Console(shlex.join(["pdplan", *words]))
    try:
        for word in words:  # plans and reports hold the whole command line
            if not word.isascii() and any(0xD800 <= ord(character) < 0xE000 for character in word):
                raise InputError(f"{shown_path(word)}: is not UTF-8 text; if it is the name of a file, rename the file")
        code = cli.main(words, prog_name="pdplan", obj=console, standalone_mode=False)
        sys.stdout.flush()
    except (PdplanError, click.ClickException) as error:
        return _refuse(error, console)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", ExitCode.INTERRUPTED)
    except ReaderGoneError:
        return ExitCode.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the outermost frame: what gets here is the machine's fault, or ours
        return _fail_on_machine(error) or _report_bug(error, console)
    return int(code or ExitCode.DONE)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit."""
    end_on_interrupt()
    try:
        guard_streams()
    except PdplanError as error:
        sys.exit(_fail(str(error), ExitCode.BAD_INPUT))
    sys.exit(run(arguments))


def _fail(sentence: str, code: ExitCode) -> int:
    lines = (shortened(line, LONGEST_LINE) for line in sentence.split("\n"))
    click.echo("pdplan: error: " + "\n".join(lines), err=True)
    return code


def _refuse(error: PdplanError | click.ClickException, console: Console) -> int:
    """Say what is wrong with the input, or show the help to who typed the program's name alone.

    A program that asked for JSON gets a document with every answer, also with one that is no.
    """
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return ExitCode.BAD_INPUT
    unmet = isinstance(error, InfeasibleError | BelowFloorError)
    if unmet and console.json_only and not console.shown:
        console.show({"schema": "pdplan.refusal/1", "status": "infeasible", "reason": _refusal(error)})
    return _fail(_refusal(error), ExitCode.INFEASIBLE if unmet else ExitCode.BAD_INPUT)


def _fail_on_machine(error: Exception) -> int | None:
    """Refuse what the machine cannot do, None where a bug is to blame.

    A file or folder that no command looked at closely enough is no bug: the system says why.
    """
    if isinstance(error, OSError) and error.filename:
        return _fail(f"{shown_path(error.filename)}: {error.strerror}", ExitCode.BAD_INPUT)
    if isinstance(error, MemoryError):
        return _fail("this machine has too little memory for the task; make it smaller", ExitCode.BAD_INPUT)
    return None


REPLACED = {
    "--tornado": "pdplan optimize FILE --sensitivity shows the cost with each lever lower and higher",
    "--backend": "pdplan whatif --address ADDRESS chooses a Dask cluster",
}
"""What took the place of options that are gone."""


def _refusal(error: PdplanError | click.ClickException) -> str:
    if isinstance(error, PdplanError):
        return str(error)
    sentence = error.format_message()
    if isinstance(error, click.NoSuchOption):  # click offers several names that are not near
        close = nearest_name(error.option_name.strip("-"), [name.strip("-") for name in error.possibilities or ()])
        mend = REPLACED.get(error.option_name) or _writing(error) or (f"did you mean --{close}?" if close else "")
        sentence = f"no such option '{error.option_name}'{f'; {mend}' if mend else ''}"
    message = shortened(" ".join(sentence.split()).rstrip("."), LONGEST_USAGE)
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "pdplan"
    return f"{message[:1].lower()}{message[1:]}{'' if message.endswith('?') else ';'} see '{where} --help'"


def _writing(error: click.NoSuchOption) -> str:
    """The options of a command that write files, where it has no --output."""
    if error.ctx is None or error.option_name not in {"-o", "--output"}:
        return ""
    names = [name for parameter in error.ctx.command.params for name in parameter.opts if name in {"--csv", "--html"}]
    return f"this command writes files with {join_words(names)}" if names else ""


def _report_bug(error: Exception, console: Console) -> int:
    has_traceback = console.verbose or bool(os.environ.get("PDPLAN_DEBUG"))
    if has_traceback:
        click.echo(harmless("".join(traceback.format_exception(error))), err=True, nl=False)
    attachments = "and its input files" if has_traceback else "its input files, and the traceback that -v shows"
    return _fail(
        f"this is a bug of pdplan {__version__}, not of your input: {type(error).__name__}: {error}; "
        f"please report it with the command line, {attachments}",
        ExitCode.BUG,
    )
