"""The options of commands: generated from the declarations of the settings, and grouped under headings in the help.

A command names the settings that it offers: `@offers("pool", "train.seed")` gives it the flags of the whole section
`pool` and of one setting. Its function is called with a `CommandLine` and with its own parameters.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from finqa_cli.commands.shared.command_line import CommandLine, declaration_of
from finqa_cli.commands.shared.help_defaults import Defaults, effective_defaults
from finqa_cli.help_order import HelpGroup
from finqa_cli.settings.declarations import Declaration
from finqa_cli.settings.offered import offered_settings
from finqa_cli.settings.published_names import replace_flags

GENERAL = "General"
_HELP = {"-h", "--help", "--help-all"}

EXIT_CODES = (
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 too many faults, 4 nothing to learn, 65 data, 69 service, "
    "70 learner process, 71 device memory, 74 storage, 75 budget, 77 key, 78 settings, "
    "85, 129, 130 and 143 stopped by a signal."
)
"""The last line of every command's help; docs/reference/exit-codes.md has the details."""

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, and nothing else.", rich_help_panel=GENERAL)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress to stderr.", rich_help_panel=GENERAL)]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="<file>",
        help="TOML, YAML or JSON file, or a name of finqa config list; repeatable.",
        show_default="./finqa.toml",
        rich_help_panel=GENERAL,
    ),
]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="<section.key=value>",
        help="Any setting; repeatable; see finqa config show.",
        rich_help_panel=GENERAL,
    ),
]

_GENERAL_OPTIONS: dict[str, tuple[Any, Any]] = {
    "config": (Config, None),
    "assign": (Assign, None),
    "as_json": (AsJson, False),
    "quiet": (Quiet, False),
}


class HelpCommand(TyperCommand):
    """A command whose help has a heading for each panel, and the main flags only; `--help-all` has all of them."""

    _shows_all = False
    _defaults: Defaults = Defaults()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note which help is asked for, and parse with flags of published scripts replaced and lists joined."""
        self._shows_all = "--help-all" in args
        offered = {flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        words = self._with_joined_lists(replace_flags(args, offered))
        self._defaults = self._find_defaults(ctx, words) if _HELP & set(words) else Defaults()
        return super().parse_args(ctx, words)

    def _find_defaults(self, ctx: Any, words: Sequence[str]) -> Defaults:
        """Return the defaults to show in the help, which depend on the other words of the command line."""
        offered = [each for parameter in self.params if (each := declaration_of(parameter.name)) is not None]
        if not offered:
            return Defaults()
        before, ctx.resilient_parsing = ctx.resilient_parsing, True  # wrong words must not prevent the help
        given, *_ = self.make_parser(ctx).parse_args(args=[word for word in words if word not in _HELP])
        ctx.resilient_parsing = before
        flags = {each.path: given[each.parameter] for each in offered if given.get(each.parameter) is not None}
        return effective_defaults(
            offered,
            flags=flags,
            files=given.get("config") or (),
            assignments=given.get("assign") or (),
            target=_first(given.get("target")),
        )

    def _with_joined_lists(self, args: Sequence[str]) -> list[str]:
        """Return the words with `--lora-target-modules q_proj k_proj` as `--lora-target-modules q_proj,k_proj`.

        The words after such a flag belong to it up to the next option, as with argparse's `nargs="+"`. If the command
        takes an argument and the line does not begin with it, nothing is joined: a word may be that argument.
        """
        lists = {
            flag
            for parameter in self.params
            if (declaration := declaration_of(parameter.name)) and declaration.is_list and declaration.flag_type is str
            for flag in parameter.opts
        }
        has_argument = any(parameter.param_type_name == "argument" for parameter in self.params)
        if has_argument and (not args or args[0].startswith("-")):
            return list(args)
        joined: list[str] = []
        at = 0
        while at < len(args):
            joined.append(args[at])
            at += 1
            if joined[-1].replace("_", "-") in lists:
                values = list(itertools.takewhile(lambda word: not word.startswith("-"), args[at:]))
                joined += [",".join(values)] if values else []
                at += len(values)
        return joined

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options by panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        omitted = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            declaration = declaration_of(parameter.name)
            if record is None or "--help" in parameter.opts:
                continue
            if declaration is not None and not (declaration.about.main or self._shows_all):
                omitted += 1
                continue
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            names, text = record
            if declaration is not None:
                text = self._help_of(declaration)
            if not self._shows_all:
                names = re.sub(r"^(--[\w-]+)(, --[\w-]+)+", r"\1", names)  # without aliases
            # Typer puts a default that is a text in parentheses
            text = re.sub(r"default: \((.+?)\)(?=[];])", r"default: \1", text)
            panels.setdefault(panel, []).append((names, text))
        if self._defaults.about and "environment__name" in {parameter.name for parameter in self.params}:
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(f"Defaults of {self._defaults.about}: finqa config show --origin.")
        more = (
            f"Also {omitted} more options, and aliases."
            if omitted
            else "Show this message with all options and aliases."
        )
        general = [*panels.pop(GENERAL, []), ("-h, --help", "This message."), ("--help-all", more)]
        for panel, rows in {**panels, GENERAL: general}.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def _help_of(self, declaration: Declaration) -> str:
        path = declaration.path
        if path in self._defaults.without:
            return f"{help_of(declaration, '')}  [no option of this environment]"
        return help_of(declaration, self._defaults.shown.get(path, declaration.shown_default))


class CommandApp(typer.Typer):
    """The Typer instance of a command, or, with a help text, of a group of commands."""

    def __init__(self, help: str | None = None, *, epilog: str | None = None, needs_command: bool = True) -> None:
        """Create the instance.

        Args:
            help: Summary of a group; None: a single command.
            epilog: Last line of the group's help.
            needs_command: The group does nothing by itself and shows its help.
        """
        super().__init__(
            cls=HelpGroup,
            help=help,
            epilog=epilog,
            rich_markup_mode=None,
            add_completion=False,
            pretty_exceptions_enable=False,
            no_args_is_help=help is not None and needs_command,
        )
        if help is not None and needs_command:
            self.callback()(lambda: None)  # a group even when it has one command

    def command(self, name: str | None = None, **details: Any) -> Callable[..., Any]:
        """Register a function as a command with grouped help."""
        return super().command(name, **{"cls": HelpCommand, **details})


def offers(*settings: str, general: Sequence[str] = tuple(_GENERAL_OPTIONS)) -> Callable[..., Callable[..., None]]:
    """Give a command the flags of settings.

    Args:
        settings: Dotted paths of settings, or of sections whose flags are all offered.
        general: The general options of the command, of `config`, `assign`, `as_json` and `quiet`.
    """
    offered = {each.parameter: (_annotation(each), None) for each in offered_settings(settings)}
    offered |= {name: _GENERAL_OPTIONS[name] for name in general}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()

        @functools.wraps(function)
        def command(ctx: typer.Context, **given: Any) -> None:
            function(CommandLine(ctx), **{parameter.name: given[parameter.name] for parameter in own})

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("ctx", keyword, annotation=typer.Context),
            *(parameter.replace(kind=keyword) for parameter in own),
            *(
                inspect.Parameter(name, keyword, annotation=annotation, default=default)
                for name, (annotation, default) in offered.items()
            ),
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _first(given: object) -> str:
    """Return the value of an argument, or the first of its values; empty if there is none."""
    return str(next(iter(given), "") if isinstance(given, (list, tuple)) else given or "")


def help_of(declaration: Declaration, shown_default: str) -> str:
    """Return the help of a flag: what it sets, with choices, unit and default."""
    about = declaration.about
    choices = f": {', '.join(declaration.choices)}" if declaration.choices and declaration.flag_type is str else ""
    default = f"default: {shown_default}" if shown_default else ""
    details = "; ".join(filter(None, (about.unit, default)))
    return f"{about.help}{choices}.{f'  [{details}]' if details else ''}"


def _annotation(declaration: Declaration) -> Any:
    names = declaration.about.flags.split()
    return Annotated[
        declaration.flag_type | None,
        typer.Option(
            *names,
            help=help_of(declaration, declaration.shown_default),
            rich_help_panel=declaration.about.panel,
            show_default=False,
        ),
    ]
