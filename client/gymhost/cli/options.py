"""What the options of several subcommands share: groups in the help, environments' modules and arguments."""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = [
    "OTHERS",
    "GroupedCommand",
    "access_options",
    "extend_import_path",
    "kwargs_option",
    "module_options",
    "option",
    "server_options",
]

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


def access_options(group: str) -> Callable[[F], F]:
    """The options that say how a server is reached: what `connect` takes as `token` and `tls`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_tls(*args: Any, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, **options: Any) -> Any:
            from gymhost.client.tls import Tls

            # Without any, `connect` takes those of the process's environment.
            tls = Tls(ca=tls_ca, cert=tls_cert, key=tls_key) if tls_ca or tls_cert or tls_key else None
            return function(*args, tls=tls, **options)

        decorated: Any = with_tls
        file = click.Path(exists=True, dir_okay=False)
        token = "The bearer token. Other users of this machine can see it here; without it, that of GYMHOST_TOKEN."
        for name, help in (
            ("key", "Its key in PEM; without it, that of GYMHOST_TLS_KEY."),
            ("cert", "The client's certificate in PEM, if the server asks for one; without it, GYMHOST_TLS_CERT."),
            ("ca", "The authority of the server's certificate in PEM: TLS is spoken; without it, GYMHOST_TLS_CA."),
        ):
            decorated = option(f"--tls-{name}", group=group, metavar="FILE", type=file, help=help)(decorated)
        return option("--token", group=group, help=token)(decorated)

    return decorate


def server_options(group: str, variable: str | None = None) -> Callable[[F], F]:
    """The options that say which server it is, and how it is reached.

    Args:
        group: Their group in the help.
        variable: The environment variable that may name the server.
    """

    def decorate(function: F) -> F:
        else_it = f" Without it, that of {variable}." if variable else ""
        address = f"HOST:PORT or unix:PATH.{else_it}"
        named = option("--server", group=group, metavar="ADDRESS", envvar=variable, help=address)
        return named(access_options(group)(function))

    return decorate


def kwargs_option(group: str, help: str, name: str = "--kwargs", parameter: str = "kwargs") -> Callable[[F], F]:
    """The option for keyword arguments of an environment or the like; the command gets them as one dict."""
    return option(
        name,
        parameter,
        metavar="JSON|KEY=VALUE",
        multiple=True,
        callback=_read_kwargs,
        group=group,
        help=f"{help} A value is JSON or else a text. May be given several times.",
    )


def _read_kwargs(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                kwargs |= json.loads(text)
            except ValueError as error:
                raise click.BadParameter(f"{text!r} is no JSON object: {error}", ctx, parameter) from None
        elif not equals or not key.isidentifier():
            raise click.BadParameter(f"{text!r} is neither a JSON object nor KEY=VALUE", ctx, parameter)
        else:
            try:
                kwargs[key] = json.loads(value)
            except ValueError:
                kwargs[key] = value
    return kwargs
