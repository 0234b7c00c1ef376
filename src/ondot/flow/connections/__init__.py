"""Connections to brokers and servers: managed, tested, and opened for an attempt."""
