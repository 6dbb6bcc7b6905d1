"""Arguments into one call per command."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from partlabel import __version__, terminal
from partlabel.commands import prior, stores
from partlabel.commands.compare import compare
from partlabel.commands.demo import demo
from partlabel.commands.evaluate import evaluate
from partlabel.commands.export import export
from partlabel.commands.predict import predict
from partlabel.commands.report import report
from partlabel.commands.train import train
from partlabel.errors import PartlabelError

# typer brings its own copy of click or uses the installed one, by version; ask it for the class.
_ClickError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="Train, evaluate and explain multi-label classifiers when most labels are unknown.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(stores.import_app, name="import")
app.add_typer(stores.simulate_app, name="simulate")
app.add_typer(prior.app, name="prior")
for _command in (demo, stores.info, train, evaluate, predict, export, compare, report):
    app.command()(_command)


def _version(asked: bool) -> None:
    if asked:
        terminal.note(f"partlabel {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def run() -> NoReturn:
    """Run the command line as a program of its own.

    It ends without tearing the interpreter down: with torch and Arrow in one process that aborts
    now and then (a thread of theirs is still starting), and the exit code would be lost.
    """
    warnings.showwarning = _warned(warnings.showwarning)
    try:
        main()
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)


def _warned(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Show warnings of this package as a line, each text once; others as ever."""
    here, said = Path(__file__).parent, set[str]()

    def show(message: Warning | str, category: type[Warning], filename: str, *more: Any) -> None:
        if here not in Path(filename).parents:
            otherwise(message, category, filename, *more)
        elif str(message) not in said:
            said.add(str(message))
            terminal.warning(str(message), aside=True)

    return show


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line and exit code 2."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
    except PartlabelError as error:
        terminal.error(str(error))
        code = 2
    except PermissionError as error:  # of a folder that may not even be looked into
        terminal.error(f"{error.filename or 'a file'}: {error.strerror}; choose another place")
        code = 2
    except _ClickError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no command given: the help is the answer
            terminal.help_text(error.format_message())
        else:
            terminal.error(_usage(error))
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        terminal.error("interrupted; files are replaced whole or left untouched")
        code = 130
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python complains at exit
        code = 1
    raise SystemExit(code or 0)


def _usage(error: _ClickError) -> str:
    command = error.ctx.command_path if getattr(error, "ctx", None) else "partlabel"
    return f"{error.format_message().rstrip('.')}; see {command} --help"


def _terminate(number: int, frame: object) -> NoReturn:
    """Leave through the clean-up of whoever is writing."""
    raise SystemExit(128 + number)
