"""What all commands share: where they print, how they report errors and progress, and their options for settings."""

import dataclasses
import functools
import inspect
import platform
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from ..checks import import_methods
from ..configuration.compression_settings import TABLES, CompressionSettings
from ..errors import BUG, OptionError, is_out_of_memory, memory_reason, option_name, transformers_problem
from ..families.table import FAMILIES
from ..loading.placement import Placement
from ..presets import RECOMMENDED
from ..records.fingerprints import digest, module_files
from ..records.provenance import without_folder

out = Console()
err = Console(stderr=True)
SOME_ERRORS, INTERRUPTED = 3, 130  # exit codes
ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        help="A Python module or file of yours that registers compression methods. Repeatable.",
        metavar="MODULE",
        show_default=False,
    ),
]
# Names of the package in Python that are not those of commands.
COMMAND_OF = {"ask": "run", "answer_many": "run", "load_watched": "chat"}
COMMAND_OF |= {"count_tokens": "count", "host_family": "check-family"}
ALIASES = {"compression_method": ["--method"], "retention_ratio": ["--ratio"]}
HELP_ALL = "vidcom2.help_all"  # marks the context of a command whose help shows all options
HYPHEN = "\0"  # stands for a hyphen while lines are broken, which happens at hyphens too
LEFT = ("", "method")  # columns of tables that hold names
_imported: dict[str, Path] = {}
_registered_by: dict[tuple[str, str], str] = {}  # (setting, method) -> the module, also of earlier commands
_imported_modules: list[str] = []
_typed: dict[str, str] = {}  # the options that the user typed, by the names of their parameters


@contextmanager
def one_line_errors(out_of_memory: str = "Use a machine with more.") -> Iterator[None]:
    """Report an error that the user can fix as one line, with exit code 2. Any other error is our bug: it keeps its
    traceback, followed by a line on how to report it, and the exit code is 1.

    The user can fix the errors whose class this package defines, such as `OptionError`, `CheckpointError`,
    `VideoError` or `PublishError`. Each is raised on purpose, with words for the user. A bare ValueError, OSError or
    ImportError counts as a bug, because what other libraries raise about the user's files is turned into one of our
    errors where they are called. Running out of memory is the one exception, since it can happen anywhere.

    Args:
        out_of_memory: what the user of this command can do when memory runs out.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, typer.Exit | typer.Abort | BrokenPipeError):  # Typer itself ends these quietly
            raise
        message = str(error)
        if is_out_of_memory(error):
            message = f"out of memory ({memory_reason(error)}). {out_of_memory}"
        elif type(error).__module__.partition(".")[0] != __name__.partition(".")[0]:
            print("".join(traceback.format_exception(error)), end="", file=sys.stderr)
            report = f"This is a bug in vidcom2. Please report it with the lines above, the command, and: {versions()}"
            err.print("[bold red]Error:[/]", escape(report), highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
        shown = escape(" ".join(as_typed(message).split()))
        err.print("[bold red]Error:[/]", shown, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def exit_with(errors: Sequence[str]) -> None:
    """End a command some of whose requests or questions have errors, each given behind its name. Bugs are reported.

    Raises:
        typer.Exit: with code 1 if one of them is a bug, 3 if there are others.
    """
    bugs = [error for error in errors if f": {BUG}" in error]
    if bugs:
        report = f"{len(bugs):,} of the errors are bugs in vidcom2. Please report the first, with the command, and: "
        err.print("[bold red]Error:[/]", escape(f"{report}{versions()}. {bugs[0]}"), highlight=False, soft_wrap=True)
    if errors:
        raise typer.Exit(1 if bugs else SOME_ERRORS)


def video_as_argument(words: list[str]) -> list[str]:
    """Return the words of a command line with what follows `--video`, another name of the argument, at their end."""
    others, videos = [], []
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--":
            others += [word, *left]
        elif name == "--video":
            given = value if equals else next(left, None)
            if given is None:
                raise typer.BadParameter("--video is the last word, but the file or URL of a video must follow it.")
            videos.append(given)
        else:
            others.append(word)
    return [*others, *["--"] * (bool(videos) and "--" not in others), *videos]


def _is_short(ctx: Any) -> bool:
    return bool(ctx.obj[0]) and HELP_ALL not in ctx.meta


class Commands(TyperGroup):
    """The commands of `vidcom2`. A user of the package in Python may try its names, and a newcomer a video alone."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, of_python = args[0], args[0].replace("-", "_")
        if self.get_command(ctx, name) is None:
            if (command := COMMAND_OF.get(of_python)) is not None:
                ctx.fail(f"No such command {name!r}. What `vidcom2.{of_python}` does, `vidcom2 {command}` does here.")
            if "." in name:
                ctx.fail(f"No such command {name!r}. To ask about a video: vidcom2 run {name}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command with a short help, which remembers by what names the user called options, for its errors.

    The context's object has the names of the options that the short help shows, or none for all, and examples.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _typed.clear()
        names = {typed: each.name for each in self.params for typed in (*each.opts, *each.secondary_opts)}
        given = [word.partition("=")[0] for word in args if word.startswith("--")]
        takes_video = "video" in names.values()
        names |= {"--video": "video"} if takes_video else {}
        _typed.update({names[word]: word for word in given if names.get(word)})
        return super().parse_args(ctx, video_as_argument(args) if takes_video else args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does: the whole docstring with `--help-all`, else its first paragraph."""
        whole = self.help or ""
        self.help = whole.split("\n\n")[0] if _is_short(ctx) else whole
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options, by their panels and whole with `--help-all`, and else the usual ones with a sentence each.

        Lines break only between words. Rich would cut long names short.
        """
        usual, examples = ctx.obj
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or (_is_short(ctx) and parameter.name not in (*usual, "video", "help", "help_all")):
                continue
            panel = "Arguments" if parameter.param_type_name == "argument" else "Options"
            name, text = record
            if _is_short(ctx):
                text = re.sub(r"\. (?! ).*?(?=  \[|$)", ".", text)
            elif getattr(parameter, "rich_help_panel", None):
                panel = parameter.rich_help_panel  # pyright: ignore[reportAttributeAccessIssue]
            panels.setdefault(panel, []).append((name, text.replace("-", HYPHEN)))
        for panel, records in panels.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records, col_max=30 if formatter.width > 70 else 6)  # or below the names
        if examples:
            with formatter.section("Examples"):
                formatter.write_text("\n\n".join(examples).replace("-", HYPHEN))
        formatter.buffer[:] = [part.replace(HYPHEN, "-") for part in formatter.buffer]

    def invoke(self, ctx: Any) -> Any:
        if self.name != "env":  # `env` reports the problem itself
            with one_line_errors():
                _check_transformers()
        return super().invoke(ctx)


def _check_transformers() -> None:
    """Refuse to run with a Transformers that is too old or too new."""
    problem = transformers_problem()
    if problem is not None:
        raise OptionError(problem)


def as_typed(message: str) -> str:
    """Return a message in which an option has the name that the user typed: `--dtype` and not `dtype`. None is no value
    that one can type."""
    message = re.sub(r"must be None \([^)]*\) or (.*) The default is None\.", r"must be \1", message)
    return re.sub(r"`(\w+)`(?= is )", lambda match: f"`{_typed.get(match[1], match[1])}`", message)


def check_not_given(context: typer.Context, names: Sequence[str], reason: str) -> None:
    """Refuse options that the user typed although they do not apply."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise OptionError(f"`{_typed.get(parameter.name, parameter.opts[0])}` {reason}. Leave it out.")


def import_for_command(modules: Sequence[str]) -> None:
    """Import the modules that `--import` names, for the command that runs."""
    with one_line_errors():
        for module in modules:
            before = {(setting, name): row for setting, table in TABLES.items() for name, row in table.rows.items()}
            import_methods(module)
            _imported_modules.append(module)
            _imported.update(module_files(module))
            for setting, table in TABLES.items():
                for name, row in table.rows.items():
                    if not row.own and before.get((setting, name)) is not row:
                        _registered_by[setting, name] = module


def forget_imports() -> None:
    """Forget what `--import` named for an earlier command in this process."""
    _imported.clear()
    _imported_modules.clear()


def imported_files() -> dict[str, str]:
    """Return the fingerprints of the files that `--import` imported for the command that runs, by their names."""
    return _digests(_imported)


def files_of_methods() -> dict[tuple[str, str], dict[str, str]]:
    """Return (setting, method) -> the fingerprints of the files of the module that registered it, by their names, for
    the modules that `--import` imported for the command that runs."""
    digests = {module: _digests(module_files(module)) for module in _imported_modules}
    return {method: digests[module] for method, module in _registered_by.items() if module in digests}


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: digest({name: path}) for name, path in sorted(files.items())}


def imported_modules() -> tuple[str, ...]:
    """Return the modules that `--import` named for the command that runs, for processes that must import them too."""
    return tuple(str(Path(each).resolve()) if each.endswith(".py") else each for each in _imported_modules)


def imports_in_commands() -> tuple[str, ...]:
    """Return what a recorded command calls the modules that `--import` named: files by their names alone."""
    return tuple(dict.fromkeys(without_folder(each) if each.endswith(".py") else each for each in _imported_modules))


def versions() -> str:
    """Return the versions that a bug report needs, as one line."""
    installed = [f"{name} {metadata.version(name)}" for name in ("vidcom2", "torch", "transformers")]
    return ", ".join([*installed, f"Python {platform.python_version()}", platform.platform(terse=True)])


def print_table(cells: Sequence[Sequence[str]]) -> None:
    """Print a table. Its first row of cells holds the headings.

    A table that is wider than the terminal breaks its lines where they are easy to read: first before brackets, then
    also between the words of headings. If that is not enough, it does without lines between its columns, or becomes
    a list.
    """
    headings, *rows = cells
    before_brackets = [[re.sub(r" (?=[(\[])", "\n", cell) for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*before_brackets)]
    wrapped = [
        textwrap.fill(heading, max(width, *map(len, heading.split())), break_long_words=False) if heading else ""
        for heading, width in zip(headings, widths)
    ]
    layouts = [(headings, rows), (headings, before_brackets), (wrapped, before_brackets)]
    tables = [_table(*layout) for layout in layouts]
    tables.append(_table(wrapped, before_brackets, box=None, pad_edge=False))
    unlimited = out.options.update(max_width=10_000)
    fitting = [table for table in tables if Measurement.get(out, unlimited, table).maximum <= out.width]
    if fitting:
        out.print(fitting[0])
        return
    for name, *row in rows:  # the terminal is too narrow for a table
        out.print(name, markup=False, highlight=False)
        for heading, cell in zip(headings[1:], row):
            if cell:
                out.print(f"  {heading}: {cell}", markup=False, highlight=False)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], **style: Any) -> Table:
    table = Table(**style)
    for heading in headings:
        table.add_column(escape(heading), justify="left" if heading in LEFT else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_line(text: str, style: str | None = None) -> None:
    """Print a line that a terminal may wrap, but that stays whole in a file or a pipe."""
    out.print(text, highlight=False, soft_wrap=True, style=style)


def print_verdict(text: str | None) -> None:
    if text is not None:
        out.print(f"[bold]{escape(text)}[/]", highlight=False)


def progress_bar() -> Progress:
    """Return a progress bar on a terminal's stderr, which disappears when the command is done."""
    spinner = [] if err.no_color else [SpinnerColumn()]
    columns = (*spinner, TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


@contextmanager
def progress_of(text: str) -> Iterator[Callable[[str, float, float | None], None]]:
    """Show a progress bar. Yields a function that says what is being done, how much of it is done, and of how much."""
    with progress_bar() as progress:
        task = progress.add_task(text, total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


@contextmanager
def stoppable(output: object) -> Iterator[None]:
    """Say after Ctrl-C that the same command continues in this file or folder. Raises `typer.Exit` with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print_line(f"Stopped. The answers so far are in {escape(str(output))}. The same command continues there.")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def status(text: str) -> Iterator[Callable[[str | None], None]]:
    """Show on a terminal's stderr what takes a while, with a spinner, so not with NO_COLOR.

    Yields a function that changes the text; None hides it.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=err, transient=True, disable=err.no_color or not err.is_terminal) as progress:
        task = progress.add_task(text, total=None)
        yield lambda text: progress.update(task, description=text or "", visible=text is not None)


def takes_settings(command: Callable[..., None], without: Sequence[str] = ()) -> Callable[..., None]:
    """Give a command one option for each setting of VidCom², from the fields of `CompressionSettings` and of families.

    `command` receives the settings that the user gave as its argument `settings`. Where the user gave none, the
    checkpoint's value holds, or with `--recommended` what this project recommends.

    Args:
        without: settings for which the command has options of its own.
    """
    options = []
    for field in dataclasses.fields(CompressionSettings):
        if field.name in without:
            continue
        accepted = field.metadata["accepted"]
        accepted = str(accepted()).partition(" (")[0] if callable(accepted) else accepted  # without what errors explain
        text = f"{accepted}."
        if "none" in field.metadata:
            text = f"{text.partition(') or ')[2]} 1000000000, which no video has, means {field.metadata['none']}."
        default = f"the checkpoint's, or {field.metadata['none'] if field.default is None else field.default}"
        options.append((field.name, field.type, text, default))
    for family in FAMILIES.values():
        for name, accepted in family.settings.items():
            text = f"Only for {family.name}: one of {', '.join(map(repr, accepted))}."
            options.append((name, str, text, f"the checkpoint's, or {accepted[0]}"))

    recommends = not set(RECOMMENDED) & set(without)
    recommended = " ".join(f"{name.replace('_', '-')}={value}" for name, value in RECOMMENDED.items())

    def with_settings(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name, *_ in options}
        settings = {name: value for name, value in values.items() if value is not None}
        if recommends and arguments.pop("recommended"):
            if "compression_method" in settings:
                with one_line_errors():
                    raise OptionError(
                        f"`--recommended` is a method with its settings, {recommended}, but another is named: "
                        f"`compression_method` is {settings['compression_method']!r}. Leave one of the two out."
                    )
            settings = dict(RECOMMENDED) | settings
        command(**arguments, settings=settings)

    parameters = [each for each in inspect.signature(command).parameters.values() if each.name != "settings"]
    if recommends:
        option = typer.Option("--recommended", help=f"The settings of docs/leaderboard.md: {recommended}.")
        parameters.append(_parameter("recommended", False, Annotated[bool, option]))
    for name, kind, text, default in options:
        panel = None if name in ("retention_ratio", "max_video_tokens") else "How tokens are selected"
        parsed = {"parser": _number_or_text, "metavar": "<float>"} if name == "retention_ratio" else {}
        names = [option_name(name), *ALIASES.get(name, ())]
        option = typer.Option(
            *names, help=text[0].upper() + text[1:], show_default=default, rich_help_panel=panel, **parsed
        )
        parameters.append(_parameter(name, None, Annotated[kind | None, option]))
    return _with_parameters(with_settings, command, parameters)


def _number_or_text(text: str) -> float | str:
    """Return the number that a text is, or else the text, which the setting's own check refuses."""
    try:
        return float(text)
    except ValueError:
        return text


def takes_imports(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--import`, which `vidcom2` takes before the command's name, too."""

    def with_imports(modules: list[str] | None, help_all: bool, **arguments: Any) -> None:
        import_for_command(modules or [])
        command(**arguments)

    options = [_parameter("modules", None, ImportOption), _parameter("help_all", False, HelpAllOption)]
    return _with_parameters(with_imports, command, [*inspect.signature(command).parameters.values(), *options])


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[HELP_ALL] = True
        print(context.get_help())
        raise typer.Exit


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_help_all, help="Show all options and exit.")
]


def takes_placement(command: Callable[..., None], without: Sequence[str] = ()) -> Callable[..., None]:
    """Give a command one option for each field of `Placement`. It receives them as its argument `placement`.

    Args:
        without: fields for which the command has options of its own, or which it does not offer.
    """
    options = [field for field in dataclasses.fields(Placement) if field.name not in without]

    def with_placement(**arguments: Any) -> None:
        placement = Placement(**{field.name: arguments.pop(field.name) for field in options})
        command(**arguments, placement=placement)

    parameters = [each for each in inspect.signature(command).parameters.values() if each.name != "placement"]
    for field in options:
        option = typer.Option(help=field.metadata["help"], show_default=field.metadata["shown"] or False)
        parameters.append(_parameter(field.name, field.default, Annotated[field.type, option]))
    return _with_parameters(with_placement, command, parameters)


def takes_fields(options_class: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of a dataclass. It receives them as one object, its argument `options`.

    The command may take other arguments too, such as Typer's `context`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        beside = [each for each in inspect.signature(command).parameters.values() if each.name != "options"]

        def with_fields(**arguments: Any) -> None:
            given = {each.name: arguments.pop(each.name) for each in beside}
            command(options=options_class(**arguments), **given)

        parameters = [*beside, *inspect.signature(options_class).parameters.values()]
        return _with_parameters(with_fields, command, parameters)

    return decorate


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _with_parameters(
    function: Callable[..., None], command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """Return `function` with the name and the help text of `command`, and with `parameters`, which Typer reads."""
    functools.update_wrapper(function, command)
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function
