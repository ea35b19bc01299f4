"""OperationsService: what whoever runs a server sees of it, and may do about it."""
