"""Trees of commands that are imported when they are called, refusal of repeated options, and errors of one line."""

import io
import os
import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from brim import __version__
from brim.core.errors import BrimError, did_you_mean

Tree = Mapping[str, "tuple[str, str | Tree]"]
"""A command: name -> ("module:command", help). A group: name -> (help, tree)."""


class Group(click.Group):
    """A group whose help is shown without importing its commands."""

    def __init__(self, name: str, help: str, tree: Tree) -> None:
        super().__init__(
            name, help=help, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
        )
        self._tree = tree

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._tree)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._tree:
            return None
        first, second = self._tree[cmd_name]
        if not isinstance(second, str):
            return Group(cmd_name, first, second)
        module, attribute = first.split(":")
        return getattr(import_module(module), attribute)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self._tree:
            ctx.fail(f"no such command: {args[0]}.{did_you_mean(args[0], self._tree)}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, Group):
            _refuse_repeated(command.context_class(command, ctx, name, **command.context_settings), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, second if isinstance(second, str) else first) for name, (first, second) in self._tree.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _refuse_repeated(ctx: click.Context, args: list[str]) -> None:
    """Refuse an option that takes one value and is given twice: click would keep the last one and lose the others.

    Raises:
        click.UsageError: An option is repeated that does not allow it.
    """
    _, _, given = ctx.command.make_parser(ctx).parse_args(list(args))
    for option, times in Counter(given).items():
        if isinstance(option, click.Option) and times > 1 and not _may_repeat(option):
            names = "/".join(option.opts)
            raise click.UsageError(f"{names} is given {times} times, but it takes one value; give it once", ctx)


def _may_repeat(option: click.Option) -> bool:
    """Return whether an option may be repeated: one that takes several values or is counted, or a flag without an
    opposite such as --no-x, whose repetition changes nothing.
    """
    return option.multiple or option.count or (option.is_flag and not option.secondary_opts)


def run(name: str, help: str, tree: Tree) -> NoReturn:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that a terminal cannot show are no reason to fail
    app = click.version_option(__version__, prog_name=name)(Group(name, help, tree))
    sys.exit(_outcome(app, name))


def _outcome(app: click.Command, name: str) -> int:
    try:
        return app.main(prog_name=name, standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrimError as error:
        from brim.core.display import visible

        # Messages quote names from data, which must not control the terminal.
        click.echo(f"{type(error).__name__}: {visible(str(error), keep=chr(10))}", err=True)
        return 2
    except BrokenPipeError:  # the reader of stdout, such as `head`, has read enough
        # Otherwise Python fails again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        return 2
