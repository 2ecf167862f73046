"""The ``diffscope`` command: one file a command, each a thin call into the library.

Results go to stdout, everything else to stderr. An expected failure is one line and exit status 2, an interrupt is 130.
"""

import os
import sys
import warnings
from importlib import import_module

import typer

from diffscope import __version__
from diffscope.cli.output import OUT_OF_MEMORY, STOPPED, kept_when_stopped, note, ran_out_of_memory
from diffscope.errors import DiffscopeError, DiffscopeWarning, MissingChecksum

COMMANDS = ("models", "check", "capture", "measure", "figure", "evaluate", "train", "monitor", "sweep", "test", "study", "app")

cli = typer.Typer(
    name="diffscope",
    help="An instrument for looking inside differential attention.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _name in COMMANDS:
    _module = import_module(f"diffscope.cli.{_name}")
    _command = kept_when_stopped("nothing was kept")(_module.command)  # what keeps something says so itself
    _class = getattr(_module, "COMMAND", None)  # of a command whose options depend on what is typed
    cli.command(_name, cls=_class, epilog="\n".join(("Example:", *_module.EXAMPLE)))(_command)


def _print_version(wanted: bool):
    if wanted:
        typer.echo(f"diffscope {__version__}")
        raise typer.Exit


@cli.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version.")):
    """Look inside differential attention."""


def main(arguments=None):
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments : list of str, optional
        What was typed after ``diffscope``; by default taken from the process. Without any, the help is printed.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:
        return _fail("stdout is closed, and results go there; leave it open, or send it to a file")
    for library in ("HF_HUB", "TRANSFORMERS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")  # what went wrong is told in one line, below
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DiffscopeWarning)  # commands say these in their own words
            warnings.simplefilter("always", MissingChecksum)
            warnings.showwarning = _in_one_line(warnings.showwarning)  # put back with the filters
            return cli(args=arguments or ["--help"], prog_name="diffscope", standalone_mode=False) or 0
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "diffscope"
        return _fail(f"{error.format_message().rstrip('.')}; see {path} --help", error.exit_code)
    except DiffscopeError as error:
        return _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read stdout has had enough
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}; check the path, its permissions and the space left")
    except (KeyboardInterrupt, typer.Abort):
        return STOPPED
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        return _fail(OUT_OF_MEMORY)


def _in_one_line(show):
    """Return what shows a warning: one of diffscope as a line, others as before."""

    def shown(message, category, *where):
        if issubclass(category, DiffscopeWarning):
            note(f"warning: {message}")
        else:
            show(message, category, *where)

    return shown


def _fail(message, status=2):
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    return status
