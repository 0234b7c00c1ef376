"""Unary calls of gRPC servers."""
