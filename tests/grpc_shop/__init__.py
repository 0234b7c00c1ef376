"""A real gRPC server for tests: the service shop.v1.Orders, with or without reflection and TLS."""
