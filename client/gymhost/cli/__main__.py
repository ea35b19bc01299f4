"""`python -m gymhost.cli`: the same as the command `gymhost`."""

from gymhost.cli import main

main()
