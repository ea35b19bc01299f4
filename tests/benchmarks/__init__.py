"""Throughput of hosted environments, compared with bare gRPC and with peers: `python -m tests.benchmarks`."""
