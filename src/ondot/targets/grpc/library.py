"""grpcio, imported at the first call: it takes a quarter of a second, and most workers call no gRPC server (E3)."""

import os
from types import ModuleType

from ondot.extras import needs_extra


def load_grpc() -> ModuleType:
    """Raises Misconfigured if it is not installed."""
    # Children of a worker are started by exec, never by fork alone. The handlers for forks are of no use then, and log
    # a line for each program. Lost connections need no line either: attempts report them.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    with needs_extra("grpc", "The target grpc"):
        # The first call needs all of them.
        import google.rpc.error_details_pb2
        import google.rpc.status_pb2  # noqa: F401
        import grpc.aio
        import grpc_reflection.v1alpha.reflection_pb2  # noqa: F401
    module: ModuleType = grpc
    return module
