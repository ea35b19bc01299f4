"""The worker: a process that runs environments. It never imports grpc."""
