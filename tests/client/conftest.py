"""The server that the tests of this folder talk to."""

from support.fixtures import grpc_path, path, proxy, server, start_server

__all__ = ["grpc_path", "path", "proxy", "server", "start_server"]
