"""The environment server: a front that speaks gRPC, and workers that run environments and never import it."""
