"""gRPC targets in a world without a network: a call fails, and the error says how to open a world that has one."""

from ondot.model.outcome import AttemptError, Failed
from ondot.model.target import GrpcTarget
from ondot.ports.target import Call, Target


class OfflineGrpc(Target[GrpcTarget]):
    async def call(self, spec: GrpcTarget, call: Call) -> Failed:
        message = f"A world has no network, so {spec.place} is not called: use open_world(…, network=True)."
        return Failed(AttemptError("connect", message))
