"""gRPC, imported in such a way that it uses its quickest poller, where nobody imported it before."""

from gymhost.wire.grpc_engine import quickest_poller

with quickest_poller():
    import grpc
    import grpc.aio  # pyright: ignore[reportUnusedImport] - it is used as an attribute of the other

__all__ = ["grpc"]
