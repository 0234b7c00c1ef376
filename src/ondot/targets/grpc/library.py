"""grpcio, imported at the first call: it takes a quarter of a second, and most workers call no gRPC server (E3)."""

import os
from types import ModuleType

from ondot.extras import needs_extra


def load_grpc() -> ModuleType:
    """Raises Misconfigured if it is not installed."""
    # Children of a worker are started by exec, never by fork alone. The handlers for forks are of no use then, and log
    # a line for each program. grpcio logs lost connections too, which attempts report.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with needs_extra("grpc", "The target grpc"):
        import grpc.aio
        import grpc_reflection.v1alpha.reflection_pb2  # noqa: F401 - the first call needs all of them
    module: ModuleType = grpc
    return module
