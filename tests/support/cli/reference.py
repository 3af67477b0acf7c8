"""The reference of the command line: the commands of `keel` and their docstrings."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from typer import Typer
from typer.models import ArgumentInfo, OptionInfo

from langgraph_keel.cli.commands import COMMANDS as SUMMARIES
from langgraph_keel.cli.commands import find_command


class Parameter(NamedTuple):
    """An option, or an argument of a command, as its function declares it."""

    names: tuple[str, ...]
    is_option: bool
    is_required: bool
    help: str
    metavar: str
    note: str

    def line(self) -> str:
        names = ", ".join(f"`{name} {self.metavar}`" if self.metavar else f"`{name}`" for name in self.names)
        return f"* {names}: {self.help}{self.note}"


class Command(NamedTuple):
    """A command and its documentation."""

    name: str
    help: str
    parameters: tuple[Parameter, ...]

    @property
    def options(self) -> set[str]:
        return {name for each in self.parameters if each.is_option for name in each.names} | {"--help", "-h"}

    def usage(self) -> str:
        words = [each.names[0] if each.is_required else f"[{each.names[0]}]" for each in self.arguments()]
        needed = [f"{each.names[0]} {each.metavar}" for each in self.parameters if each.is_option and each.is_required]
        return " ".join(["keel", self.name, *words, *needed, "[OPTIONS]"])

    def arguments(self) -> list[Parameter]:
        return [each for each in self.parameters if not each.is_option]


def commands() -> Iterator[Command]:
    """Yield every command, those of groups last."""
    for name, found in ((name, find_command(name)) for name in SUMMARIES):
        if isinstance(found, Typer):
            for info in found.registered_commands:
                assert info.callback
                yield command_of(f"{name} {info.name or info.callback.__name__}", info.callback)
        else:
            yield command_of(name, found)


def command_of(name: str, function: Callable[..., Any]) -> Command:
    return Command(name, inspect.getdoc(function) or "", tuple(parameters_of(function)))


def parameters_of(function: Callable[..., Any]) -> Iterator[Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = annotated(hints[name])
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        is_option = isinstance(info, OptionInfo)
        is_required = parameter.default is inspect.Parameter.empty
        metavar = info.metavar or placeholder(kind)
        metavar = metavar[1:-1] if metavar.startswith("[") else metavar
        names = names_of(info, name) if is_option else (metavar,)
        yield Parameter(names, is_option, is_required, info.help or "", metavar * is_option, note(default, info))


def names_of(info: Any, name: str) -> tuple[str, ...]:
    # In an annotation, typer takes the argument in the place of the default for the first name.
    first = () if info.default in (None, ...) else (str(info.default),)
    return (*first, *(info.param_decls or ())) or (f"--{name.replace('_', '-')}",)


def annotated(hint: Any) -> tuple[Any, OptionInfo | ArgumentInfo]:
    """Return the type of a parameter, and its declaration for typer."""
    assert get_origin(hint) is Annotated, hint
    kind, info = get_args(hint)[:2]
    return kind, info


def placeholder(kind: Any) -> str:
    kinds = (kind,) if get_origin(kind) is Literal else get_args(kind) or (kind,)
    for part in kinds:
        if get_origin(part) is Literal:
            return "|".join(get_args(part))
    return "" if bool in kinds else "N" if int in kinds else "NUMBER" if float in kinds else "TEXT"


def note(default: Any, info: Any) -> str:
    said = "" if default in (None, False, "") else f" Default: `{default}`"
    said += f", or the value of `{info.envvar}`" if said and info.envvar else ""
    return f"{said}." if said else ""


COMMANDS = {command.name: command for command in commands()}


def reference() -> str:
    """Return the reference of all commands."""
    often = Counter(each for command in COMMANDS.values() for each in command.parameters if each.is_option)
    shared = [each for each, times in often.items() if times > len(COMMANDS) / 2]
    parts = ["### The options that most commands have", "\n".join(each.line() for each in shared)]
    for command in COMMANDS.values():
        own = [each for each in command.parameters if each not in shared]
        parts += [f"### keel {command.name}", f"```text\n{command.usage()}\n```", command.help]
        parts += ["\n".join(each.line() for each in own)] if own else []
        also = [f"`{each.names[0]}`" for each in shared if each in command.parameters]
        parts += [f"Also: {', '.join(also)}."] if also else []
    return "\n\n".join(parts)
