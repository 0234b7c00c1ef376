"""Real Redis, Kafka, RabbitMQ, etcd and NATS servers for tests and benchmarks, on loopback, with their data in a
directory of their own.

Each is started once and can then be stopped, killed, frozen and restarted on the same port with the same data. A server
that the machine lacks raises `Missing`, which says how to install it: tests skip, benchmarks report it. `tests/run.sh`
installs all of them. Kafka comes from Maven, once for each machine, into a directory beside other temporary files.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import psutil
from started import free_port

STARTS_WITHIN_S: Final = 120.0
STOPS_WITHIN_S: Final = 30.0
KAFKA_VERSION: Final = "4.1.0"
KAFKA_PLACE: Final = Path(tempfile.gettempdir()) / f"ondot-kafka-{KAFKA_VERSION}-{os.getuid()}"
KAFKA_INSTALLS_WITHIN_S: Final = 240


MARK: Final = "ONDOT_BROKER_DIRECTORY"
"""In the environment of a server and all that it starts, such as RabbitMQ's port mapper, which is a daemon."""


class Missing(Exception):
    """This machine does not have the server."""


class Broker:
    """One server: a subclass names its command and knows when it is ready."""

    program: ClassVar[str]
    package: ClassVar[str]

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"ondot-{self.program}-"))
        self.port = free_port()
        self.process: psutil.Popen | None = None

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """A server on an empty directory, which is removed afterwards."""
        broker = cls()
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()
            shutil.rmtree(broker.directory, ignore_errors=True)

    @property
    def url(self) -> str:
        """What a setting or a connection names."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return {}

    def is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def start(self) -> None:
        """Start it, again with the same port and data if it was stopped, and wait until it is ready."""
        log = (self.directory / "log").open("ab")
        self.process = psutil.Popen(
            self.command(),
            env={**os.environ, **self.environment(), MARK: str(self.directory)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.directory,
            start_new_session=True,
        )
        log.close()
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                text = (self.directory / "log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self.program} did not start:\n{text}")
            time.sleep(0.02)

    def stop(self) -> None:
        """As a service manager does."""
        self._signal(signal.SIGTERM, STOPS_WITHIN_S)
        self.kill()

    def kill(self) -> None:
        """`kill -9` of all its processes."""
        kill_all_of(self.directory)
        if self.process is not None:
            # Redis writes its title over the environment that it is found by.
            with suppress(psutil.NoSuchProcess):
                self.process.kill()
            self.process.wait(STOPS_WITHIN_S)
        self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Its connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int, wait_s: float = 0.0) -> None:
        if self.process is None:
            return
        with suppress(psutil.NoSuchProcess):
            for process in [*self.process.children(recursive=True), self.process]:
                process.send_signal(number)
        if wait_s:
            with suppress(psutil.TimeoutExpired):
                self.process.wait(wait_s)

    @classmethod
    def _find(cls, program: str | None = None) -> str:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/lib/rabbitmq/bin"])
        found = shutil.which(program or cls.program, path=path)
        if found is None:
            raise Missing(f"no {cls.program} on this machine: apt-get install {cls.package}")
        return found


def kill_all_of(directory: Path) -> None:
    """`kill -9` of the server with this directory, whichever process started it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # Redis writes its title over its environment, RabbitMQ's port mapper runs in another directory.
            if str(directory) in {process.cwd(), process.environ().get(MARK)}:
                process.kill()


class Redis(Broker):
    program = "redis-server"
    package = "redis-server"

    def __init__(self, *flags: str) -> None:
        super().__init__()
        self._flags = flags

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        port, directory = str(self.port), str(self.directory)
        return (
            *(self._find(), "--bind", "127.0.0.1", "--port", port, "--dir", directory, "--save", "", "--appendonly"),
            *("yes", *self._flags),
        )

    def is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        return False


class RedisSentinel(Broker):
    """One that watches a master, which it calls `mymaster`, and promotes a replica half a second after it is gone."""

    program = "redis-sentinel"
    package = "redis-sentinel"

    def __init__(self, master: Redis) -> None:
        super().__init__()
        self._master = master

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/mymaster/0"

    def command(self) -> Sequence[str]:
        settings = self.directory / "sentinel.conf"
        if not settings.exists():
            settings.write_text(
                f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n"
                f"sentinel monitor mymaster 127.0.0.1 {self._master.port} 1\n"
                "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
            )
        return (self._find(), str(settings))


class Kafka(Broker):
    program = "kafka"
    package = "maven default-jre-headless"

    def __init__(self, **properties: str) -> None:
        """`properties`: further ones of the broker, with dots as underscores."""
        super().__init__()
        self._controller = free_port()
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        java = (self._find("java"), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        words = (*java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{install_kafka()}/*")
        properties = self.directory / "server.properties"
        if not properties.exists():
            properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
            form = (*words, "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(properties))
            subprocess.run(form, check=True, capture_output=True, timeout=STARTS_WITHIN_S)
        return (*words, "kafka.Kafka", str(properties))

    def _settings(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._properties,
        }

    def is_ready(self) -> bool:
        """Once it answers for metadata: it listens some seconds before."""
        if not super().is_ready():
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            metadata = AdminClient({"bootstrap.servers": self.url, "log_level": 0}).list_topics(timeout=2)
        except KafkaException:
            return False
        return bool(metadata.brokers)


def install_kafka() -> Path:
    """The directory of its jars. One process downloads them, the others wait."""
    libs = KAFKA_PLACE / "libs"
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise Missing("no Java and Maven on this machine: apt-get install maven default-jre-headless")
    KAFKA_PLACE.mkdir(mode=0o700, exist_ok=True)
    with (KAFKA_PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libs.exists():
            parts = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
            dependencies = "".join(
                f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
                "</dependency>"
                for group, name, version in parts
            )
            (KAFKA_PLACE / "pom.xml").write_text(
                '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
                "<groupId>ondot</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>"
                f"<dependencies>{dependencies}</dependencies></project>"
            )
            fetched = KAFKA_PLACE / "fetched"
            command = ("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={fetched}")
            try:
                subprocess.run(
                    command, cwd=KAFKA_PLACE, check=True, capture_output=True, timeout=KAFKA_INSTALLS_WITHIN_S
                )
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise Missing(f"Maven could not download Kafka: {error}") from error
            fetched.rename(libs)
    return libs


class RabbitMQ(Broker):
    program = "rabbitmq-server"
    package = "rabbitmq-server"

    def __init__(self) -> None:
        super().__init__()
        self._distribution, self._epmd = free_port(), free_port()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def command(self) -> Sequence[str]:
        program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # itself, not the wrapper, which changes the account
        if not program.exists():
            raise Missing(f"no {self.program} on this machine: apt-get install {self.package}")
        (self.directory / "plugins").write_text("[].\n")
        return (str(program),)

    def environment(self) -> Mapping[str, str]:
        place = str(self.directory)
        return {
            "HOME": place,
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": f"{place}/mnesia",
            "RABBITMQ_LOG_BASE": f"{place}/logs",
            "RABBITMQ_PID_FILE": f"{place}/pid",
            "RABBITMQ_CONFIG_FILE": f"{place}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
        }

    def control(self, *words: str) -> None:
        """`rabbitmqctl WORDS` on this server."""
        program = "/usr/lib/rabbitmq/bin/rabbitmqctl"
        environment = {**os.environ, **self.environment()}
        subprocess.run((program, *words), env=environment, check=True, capture_output=True, timeout=60)


class Etcd(Broker):
    program = "etcd"
    package = "etcd-server"
    scheme = "http"

    def __init__(self, *flags: str) -> None:
        super().__init__()
        self._peer = free_port()
        self._flags = flags

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def call(self, path: str, **body: object) -> dict[str, Any]:
        """As an operator would, by HTTP: `call("lease/leases")`."""
        with urllib.request.urlopen(f"{self.url}/v3/{path}", json.dumps(body).encode(), timeout=10) as answer:
            reply: dict[str, Any] = json.load(answer)
            return reply

    def wipe(self) -> None:
        """Remove its data, while it does not run."""
        shutil.rmtree(self.directory / "data")

    def command(self) -> Sequence[str]:
        peer = f"http://127.0.0.1:{self._peer}"
        return (
            *(self._find(), "--data-dir", str(self.directory / "data"), "--listen-client-urls", self.url),
            *("--advertise-client-urls", self.url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", *self._flags),
        )

    def is_ready(self) -> bool:
        trust = ssl._create_unverified_context() if self.scheme == "https" else None
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=1, context=trust) as answer:
            return b"true" in answer.read()
        return False


class Nats(Broker):
    program = "nats-server"
    package = "nats-server"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return (self._find(), "-js", "-sd", str(self.directory / "data"), "-a", "127.0.0.1", "-p", str(self.port))
