"""`gymhost token`."""

from pathlib import Path

import click

from gymhost.cli.options import GroupedCommand, option
from gymhost.server.tokens import ROLES, Owner, Role, add_to_file, check_name, hash_of, new_token

__all__ = ["command"]


@click.command("token", cls=GroupedCommand)
@click.argument("name")
@option(
    "--role",
    type=click.Choice(list(ROLES)),
    default=Role.USER.label,
    show_default=True,
    help="read-only lists and describes; user has sessions; admin also sees everybody's.",
)
@option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the token's hash to this file, the one of gymhost serve --token-file; it is made if it is not there.",
)
def command(name: str, role: str, file: Path | None) -> None:
    """Make a token for NAME, and print it: it can't be printed again, since servers keep its hash alone.

    A server that runs takes the change of its file within seconds. A name may have several tokens: to change one, add
    another, give it to the clients, and take the old line out. A token whose line is taken out is of no more use, and
    its streams are cut; when a name has none left, its sessions are closed.

    \b
    Examples:
      gymhost token alice --file tokens
      gymhost token watcher --role read-only --file tokens
      export GYMHOST_TOKEN=$(gymhost token alice --file tokens)
    """  # noqa: D301 - click wants the character, not an escape
    try:
        owner = Owner(check_name(name), ROLES[role])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    token = new_token()
    if file is not None:
        add_to_file(file, owner, hash_of(token))
    click.echo(token)
    if file is None:
        words = name if owner.role is Role.USER else f"{name} {role}"
        click.echo(f"The line for gymhost serve --token-file:\n{words} {hash_of(token)}", err=True)
