"""The dashboard: pages that show what servers do, in a process of its own that asks them over gRPC."""
