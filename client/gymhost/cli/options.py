"""What the options of several subcommands share: groups in the help, environments' modules and arguments, sizes."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

__all__ = ["OTHERS", "EnvironmentArguments", "GroupedCommand", "environment_arguments", "extend_import_path", "module_options", "option"]

OTHERS = "Others"

F = TypeVar("F", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that belongs to a group of the help."""

    def __init__(self, *args: Any, group: str = OTHERS, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows its options by groups, in the order in which they were written."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section a group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", OTHERS), []).append(record)
        if OTHERS in groups:
            groups[OTHERS] = groups.pop(OTHERS)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


def option(*names: str, group: str = OTHERS, **settings: Any) -> Callable[[F], F]:
    """An option in a group of the help."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


def module_options(group: str) -> Callable[[F], F]:
    """The options that say where environments are registered, for commands that run them on this machine."""

    def decorate(function: F) -> F:
        with_folder = option(
            "--app-dir",
            "folders",
            type=click.Path(exists=True, file_okay=False),
            multiple=True,
            group=group,
            help="A folder to look for modules in, after the current one. May be given several times.",
        )(function)
        return option(
            "--module",
            "-m",
            "modules",
            metavar="MODULE",
            multiple=True,
            group=group,
            help="A module that registers environments. May be given several times.",
        )(with_folder)

    return decorate


def extend_import_path(folders: Sequence[str]) -> None:
    """Has modules looked for in the current folder first, then in these; an embedded server looks there too."""
    sys.path[:] = dict.fromkeys([str(Path(folder).resolve()) for folder in (".", *folders)] + sys.path)


class EnvironmentArguments(click.ParamType):
    """Keyword arguments of an environment: a JSON object, or KEY=VALUE with a value in JSON or a bare text."""

    name = "JSON|KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Reads one of them."""
        if isinstance(value, dict):
            return cast(dict[str, Any], value)
        text = str(value)
        if text.lstrip().startswith("{"):
            try:
                return json.loads(text)
            except ValueError as error:
                self.fail(f"{text!r} is no JSON object: {error}", param, ctx)
        key, equals, said = text.partition("=")
        if not equals or not key.isidentifier():
            self.fail(f"{text!r} is neither a JSON object nor KEY=VALUE", param, ctx)
        try:
            return {key: json.loads(said)}
        except ValueError:
            return {key: said}


def environment_arguments(given: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Puts together what several `--kwargs` said; the last one wins."""
    return {key: value for arguments in given for key, value in arguments.items()}
