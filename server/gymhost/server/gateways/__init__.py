"""Gateways: processes of their own in which others' protocols are spoken, each a client of the environment server."""
