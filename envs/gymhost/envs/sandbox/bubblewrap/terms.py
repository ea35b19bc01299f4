"""What the worker and its keeper agree on. Standard library alone, on any system."""

__all__ = ["BOX", "BWRAP", "ETC", "HOME", "LAYERS", "PACKET"]

# The largest packet between them.
PACKET = 180_000

# Where the keeper has what it makes, in a root of its own.
HOME = "/.gymhost"
# What is here is each sandbox's own: a file system in a mount namespace of its own.
BOX = f"{HOME}/box"
BWRAP = f"{HOME}/bwrap"
ETC = f"{HOME}/etc"
LAYERS = f"{HOME}/layers"
