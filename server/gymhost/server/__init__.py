"""The environment server: a front that speaks gRPC, and workers that run environments and never import it."""

import os

from gymhost.wire.grpc_engine import choose_poller

# The front forks (and executes) workers while gRPC runs. gRPC's own fork handlers can't do their work then, and crash
# the child now and again before it has executed anything; gRPC reads this when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
choose_poller()
# Each stranger at a port that speaks TLS would be worth lines of gRPC's own on stderr. Clients are told what is wrong.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
