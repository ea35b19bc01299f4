"""The front: the process that speaks gRPC. It never imports the code of an environment."""
