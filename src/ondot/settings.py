"""Settings: one frozen object, read once from flags, `ONDOT_*` variables and `ondot.toml`, in that order.

Secrets may come from a file (`ONDOT_DATABASE_URL_FILE`, `ONDOT_API_KEY_FILE`, …). All errors are reported at once, each
with what to do. This is the complete list of settings; a test compares docs/reference with it.
"""

import base64
import os
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ondot.model.addresses import Reach, parse_networks
from ondot.model.app_release import check_release
from ondot.model.email import is_email_address, parse_smtp_url
from ondot.model.errors import Misconfigured
from ondot.model.etcd_url import parse_etcd_url
from ondot.model.redis_urls import parse_redis_url
from ondot.model.routes import TransportName
from ondot.model.tenant import TENANTS_SHOWN
from ondot.model.urls import fault_of

SECRETS = (
    "database_url",
    "api_key",
    "audit_key",
    "secret_key",
    "oidc_client_secret",
    "smtp_url",
    "dead_man_url",
    "redis_url",
    "etcd_url",
    "kafka_password",
    "rabbitmq_url",
    "nats_url",
)
MAY_HOLD_SECRETS = frozenset({*SECRETS, "url", "objects_url", "archive_url", "public_url", "oidc_issuer"})
TRANSPORT_SERVERS = {
    "redis": ("redis_url", "redis://host:6379/0"),
    "kafka": ("kafka_servers", "host:9092"),
    "rabbitmq": ("rabbitmq_url", "amqp://user:password@host/"),
    "nats": ("nats_url", "nats://host:4222"),
}
"""What each transport needs, with an example."""
TOML = "ondot.toml"
TAKEOVER_S = 1.0
MASTER_KEY_BYTES = 32
_SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off", ""), False)
LEAST_KEY = 32
"""Characters of a key that signs or encrypts."""
SHELL_VARIABLES = frozenset(
    f"ONDOT_{name}" for name in ("EXECUTION_ID", "JOB_ID", "JOB_NAME", "FIRE_AT", "ATTEMPT", "FENCING_TOKEN", "CALL_ID")
)


def default_home() -> Path:
    """The directory for this user's data. For root: one that the account of the server can reach, unlike /root."""
    if os.geteuid() == 0:
        return Path("/var/lib/ondot")
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "share") / "ondot"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="ONDOT_",
        frozen=True,
        extra="forbid",
        toml_file=TOML,
        validate_default=True,
        env_ignore_empty=True,
    )

    # Where things are.
    database_url: str | None = Field(
        None, repr=False, description="PostgreSQL 15 to 18; without it `ondot up` starts its own"
    )
    home: Path | None = Field(None, description="where `ondot up` keeps its data")
    host: str = Field("127.0.0.1", description="the address the API listens on")
    port: int = Field(1200, ge=0, le=65535, description="the port the API listens on")
    url: str = Field("http://127.0.0.1:1200", description="the server's URL, for clients")
    api_key: str | None = Field(None, repr=False, description="the API key, for clients")
    tenant: str | None = Field(None, description="the tenant that an owner acts for, for clients")
    context: str | None = Field(None, description="the context that commands use, see `ondot context`")
    secret_key: str | None = Field(
        None,
        repr=False,
        description="master keys of secrets, each base64 of 32 bytes, separated by commas; the first encrypts",
    )
    objects_url: str | None = Field(
        None, description="storage for large output: file:///directory or s3://bucket/prefix; default: under the home"
    )

    public_url: str | None = Field(None, description="the URL at which people open the pages, if a proxy is in front")
    audit_key: str | None = Field(
        None,
        repr=False,
        description="signs the seals of the audit log; several, separated by commas: the first one signs",
    )

    smtp_url: str | None = Field(
        None,
        repr=False,
        description="the server that sends e-mails: smtp://user:password@host:587 (STARTTLS) or smtps://host",
    )
    smtp_from: str | None = Field(None, description="the address that e-mails come from")
    dead_man_url: str | None = Field(
        None, repr=False, description="called each minute as long as /readyz is good, so that silence is noticed"
    )

    trusted_proxies: str | None = Field(
        None,
        description="addresses and networks, separated by commas, of proxies whose X-Forwarded-For names the client",
    )

    # What is allowed.
    auth: Literal["on", "off"] = Field("on", description="off: require no key; on loopback only")
    metrics_auth: Literal["on", "off"] = Field(
        "off", description="on: /metrics needs a key with the right fleet:manage, that of an owner"
    )
    session_s: float = Field(
        7 * 24 * 3600.0, ge=60, le=90 * 24 * 3600, description="how long a sign-in to the pages lasts at most"
    )
    session_idle_s: float = Field(
        12 * 3600.0, ge=60, le=90 * 24 * 3600, description="a sign-in without a request for this long ends"
    )
    oidc_issuer: str | None = Field(None, description="the OpenID provider with which people sign in to the pages")
    oidc_client_id: str | None = Field(None, description="the client that the provider knows ondot as")
    oidc_client_secret: str | None = Field(None, repr=False, description="the secret of that client, if it has one")
    oidc_domain: str | None = Field(
        None, description="verified addresses of this domain become viewers of the first tenant when they sign in"
    )
    allow_private_targets: bool | str = Field(
        False, description="allow HTTP targets in private address ranges: all, or networks separated by commas"
    )
    allow_shell: bool = Field(False, description="run shell targets on this worker")
    shell_user: str | None = Field(
        None, description="the account that runs shell commands; needs a worker that runs as root"
    )
    shell_tenants: str | None = Field(
        None,
        description="tenants whose shell commands this worker runs, separated by commas; * for all, default the first",
    )
    shell_pools: str | None = Field(
        None, description="pools in which this worker runs shell commands, separated by commas; default all"
    )
    shell_env: str | None = Field(
        None, description="names of further variables for shell commands, separated by commas"
    )
    shell_memory_bytes: int | None = Field(
        None, ge=1024 * 1024, description="address space of each process of a shell command"
    )
    shell_cpu_s: int | None = Field(None, ge=1, description="processor time of each process of a shell command")
    shell_file_bytes: int | None = Field(None, ge=1, description="the largest file that a shell command may write")
    allow_unsafe_database: bool = Field(
        False, description="run on fsync=off or synchronous_commit=off: jobs may be lost"
    )
    hold_on_restore: bool = Field(
        True,
        description="on a restored backup or a promoted asynchronous standby nothing starts until a person accepts it",
    )
    row_security: bool = Field(
        False, description="the API's reads of jobs and executions use PostgreSQL's row-level security"
    )
    pgbouncer: bool = Field(False, description="the database is behind PgBouncer in transaction mode: no LISTEN")
    transport: TransportName = Field(
        "postgres",
        description="what carries wake-ups to workers: postgres (LISTEN, NOTIFY), local (in a process; else polling) or"
        " a server that you run: redis, kafka, rabbitmq or nats",
    )
    transport_prefix: str = Field(
        "ondot",
        pattern=r"^[A-Za-z0-9_-]{1,60}$",
        description="begins the names of all that a transport stores; one for each installation that shares a server",
    )
    redis_url: str | None = Field(
        None,
        repr=False,
        description="the server of the transport redis: redis://, rediss://, unix://, redis+sentinel://, redis+cluster://",
    )
    coordination: Literal["postgres", "etcd"] = Field(
        "postgres", description="where schedulers hold their leases on partitions; etcd needs etcd_url"
    )
    etcd_url: str | None = Field(
        None,
        repr=False,
        description="etcd's client URLs, separated by commas, with user, password and a path for its keys if needed",
    )
    etcd_ca: Path | None = Field(
        None, description="the file with the certificate that signs etcd's; default: the system's"
    )
    kafka_servers: str | None = Field(None, description="the servers of the transport kafka: host:9092,host:9092")
    kafka_user: str | None = Field(None, description="the user of Kafka (SASL); default: none")
    kafka_password: str | None = Field(None, repr=False, description="the password of Kafka's user")
    kafka_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how Kafka's user signs in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    kafka_tls: bool = Field(False, description="connections to Kafka use TLS")
    kafka_ca: Path | None = Field(
        None, description="the file of certificates that sign those of Kafka's servers; default: the system's"
    )
    rabbitmq_url: str | None = Field(
        None, repr=False, description="the server of the transport rabbitmq: amqp://user:password@host/vhost, amqps://"
    )
    nats_url: str | None = Field(
        None, repr=False, description="the servers of the transport nats: nats://host:4222 or tls://, by commas"
    )

    # How it behaves.
    lease_s: float = Field(5.0, ge=0.5, le=60, description="how long a node's lease on its partitions lasts")
    heartbeat_s: float = Field(10.0, ge=0.5, le=600, description="a worker without a heartbeat for this long is lost")
    horizon_s: float = Field(20.0, ge=5, le=600, description="how far ahead fires are planned")
    grace_s: float = Field(25.0, ge=0, le=3600, description="how long a stopping worker lets attempts finish")
    ready_lag_s: float = Field(
        30.0,
        gt=0,
        description="/readyz answers 503 when a due fire has waited longer than this; 5 s if it is not even planned",
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="the port on which this process serves its /metrics; 0: any free one"
    )
    metrics_host: str = Field("127.0.0.1", description="the address on which it serves them")
    metrics_tenants: str | None = Field(
        None,
        description="tenants with series of their own in /metrics: names separated by commas, or * for the first 100",
    )
    archive_url: str | None = Field(
        None, description="where days are archived before they go: file:///directory or s3://bucket/prefix"
    )
    trace_url: str | None = Field(
        None, description="where the page of an execution links to its trace, with {trace_id} in it"
    )
    retention_days: int = Field(
        30, ge=1, le=3650, description="how long history, ended jobs, their versions and resolved dead letters are kept"
    )
    retention_at: str = Field(
        "03:37", description="when days past their retention go, by UTC, as hours:minutes: choose a quiet time"
    )
    retention_min_days: int | None = Field(
        None, ge=1, le=3650, description="while the disk is nearly full, history is kept only this long; unset: never"
    )
    sink_retention_hours: int = Field(
        72,
        ge=1,
        le=24 * 365,
        description="how long events wait for a sink that does not receive them, then they are dropped",
    )
    disk_limit: int | None = Field(
        None, ge=1_000_000, description="bytes that the database may have, to know when its disk is nearly full"
    )
    queue_ceiling: int | None = Field(
        None, ge=1, le=1_000_000, description="while this many due executions wait in a pool, new jobs for it get 429"
    )
    release: str | None = Field(
        None, description="the release of the app that a worker runs; default: a hash of what its code declares"
    )
    slots: int = Field(100, ge=1, le=100_000, description="attempts that one worker process runs at a time")
    max_body_bytes: int = Field(
        2 * 1024 * 1024,
        ge=1024,
        le=64 * 1024 * 1024,
        description="the largest request body, and job of a batch",
    )
    max_batch_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024, description="the largest body of a batch of jobs"
    )
    database_connections: int = Field(
        8,
        ge=2,
        le=200,
        description="connections of one process to PostgreSQL; half as many more for slow statements",
    )
    statement_timeout_s: float = Field(30.0, ge=1, description="the timeout of ondot's statements")
    inline_bytes: int = Field(
        64 * 1024, ge=1024, le=64 * 1024 * 1024, description="larger results go to object storage"
    )
    log_lines: int = Field(2000, ge=1, le=50_000, description="lines of an attempt kept in the database")
    log_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024 * 1024,
        le=64 * 1024 * 1024,
        description="the most of a longer output that is kept in object storage",
    )
    log_format: Literal["auto", "json", "console"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    _from_toml: frozenset[str] = PrivateAttr(default=frozenset())
    """The settings that come from `ondot.toml` alone."""

    def is_from_toml(self, name: str) -> bool:
        return name in self._from_toml

    def is_given(self, name: str) -> bool:
        """Whether it has a value that is not the default."""
        return name in self.model_fields_set

    @property
    def server(self) -> tuple[str, str | None]:
        """The server's URL for a client, and the API key to send to it.

        Raises Misconfigured if they come from different places. An `ondot.toml` in the working directory may be
        somebody else's: a URL in it must not get the key of the environment, and a key in it must not go to the URL of
        the environment. Arguments and variables are one place; the default URL is this machine and fits both.
        """
        url_in_toml, key_in_toml = (name in self._from_toml for name in ("url", "api_key"))
        if self.api_key and "url" in self.model_fields_set and url_in_toml != key_in_toml:
            have, lack = ("url", "api_key") if url_in_toml else ("api_key", "url")
            raise Misconfigured(
                f"`{have}` comes from {TOML} in {Path.cwd()}, but `{lack}` does not: an API key is only sent to a URL"
                f" from the same place. Set ONDOT_{have.upper()} as well, or put `{lack}` into {TOML} beside `{have}`."
            )
        return self.url, self.api_key

    def missing_for(self, transport: str) -> str | None:
        """The variable that a transport needs and that is not set, with an example; None: it has all."""
        name, example = TRANSPORT_SERVERS.get(transport, (None, None))
        return None if name is None or getattr(self, name) is not None else f"ONDOT_{name.upper()}={example}"

    @property
    def holds(self) -> bool:
        """Whether nothing starts on a database that may have lost acknowledged work."""
        return self.hold_on_restore and not self.allow_unsafe_database

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def retention_after(self) -> timedelta:
        """How long after midnight, by UTC, days past their retention go."""
        hours, minutes = self.retention_at.split(":")
        return timedelta(hours=int(hours), minutes=int(minutes))

    @field_validator("database_url")
    @classmethod
    def _is_postgresql(cls, url: str | None) -> str | None:
        if url is not None and (fault := fault_of(url)) is not None:
            raise ValueError(fault)
        return url

    @field_validator("release")
    @classmethod
    def _is_a_release(cls, release: str | None) -> str | None:
        return None if release is None else check_release(release)

    @field_validator("secret_key")
    @classmethod
    def _is_a_list_of_keys(cls, keys: str | None) -> str | None:
        for number, key in enumerate(split_keys(keys), start=1):
            try:
                size = len(base64.b64decode(key, validate=True))
            except ValueError:
                size = 0
            if size != MASTER_KEY_BYTES:
                raise ValueError(
                    f"key {number} must be base64 of {MASTER_KEY_BYTES} bytes: create one with"
                    " `ondot secret generate-key`, and separate several by commas"
                )
        return keys

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        try:
            is_http = urlsplit(url).scheme in {"http", "https"} and bool(urlsplit(url).hostname)
        except ValueError:
            is_http = False
        if not is_http:
            raise ValueError("must begin with http:// or https:// and name a host, e.g. http://127.0.0.1:1200")
        return url.rstrip("/")

    @field_validator("public_url", "oidc_issuer")
    @classmethod
    def _is_https(cls, url: str | None) -> str | None:
        """Passwords and cookies must not cross a network in plain."""
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            is_plain = bool(parts.username or parts.password or parts.query or parts.fragment)
            is_local = (parts.hostname or "") in {"127.0.0.1", "localhost", "::1"}
            is_fine = bool(parts.hostname) and parts.port != 0 and not is_plain
        except ValueError:
            is_fine = is_local = False
        if not is_fine or not (parts.scheme == "https" or (parts.scheme == "http" and is_local)):
            raise ValueError("must be https://host, without credentials and options; http:// only on this machine")
        return url

    @field_validator("public_url")
    @classmethod
    def _is_an_origin(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).path.strip("/"):
            raise ValueError(
                "must be scheme and host only, e.g. https://ondot.example.com: ondot needs a host of its own"
            )
        return None if url is None else url.rstrip("/").lower()

    @field_validator("redis_url")
    @classmethod
    def _is_an_address_of_redis(cls, url: str | None) -> str | None:
        if url is not None:
            parse_redis_url(url)
        return url

    @field_validator("kafka_servers")
    @classmethod
    def _are_servers_of_kafka(cls, servers: str | None) -> str | None:
        if servers is None:
            return None
        if "://" in servers or not all(
            re.fullmatch(r"(\[[^\]]+\]|[^:@\s]+):\d+", one) for one in _split_names(servers) or [""]
        ):
            raise ValueError("must be host:port, several separated by commas, e.g. kafka-1:9092,kafka-2:9092")
        return ",".join(_split_names(servers))

    @field_validator("rabbitmq_url")
    @classmethod
    def _is_an_address_of_rabbitmq(cls, url: str | None) -> str | None:
        return _check_url_of(url, ("amqp", "amqps"), "amqp://user:password@host/vhost")

    @field_validator("nats_url")
    @classmethod
    def _are_addresses_of_nats(cls, url: str | None) -> str | None:
        for one in _split_names(url):
            _check_url_of(one, ("nats", "tls"), "nats://host:4222")
        return url

    @field_validator("smtp_url")
    @classmethod
    def _is_an_smtp_server(cls, url: str | None) -> str | None:
        if url is not None:
            parse_smtp_url(url)
        return url

    @field_validator("etcd_url")
    @classmethod
    def _is_etcd(cls, url: str | None) -> str | None:
        if url is not None:
            parse_etcd_url(url)
        return url

    @field_validator("etcd_ca")
    @classmethod
    def _is_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError("must be a file with a certificate in PEM form")
        return path

    @field_validator("smtp_from")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is not None and not is_email_address(address):
            raise ValueError("must be an e-mail address, e.g. ondot@example.com")
        return address

    @field_validator("dead_man_url")
    @classmethod
    def _is_a_web_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            is_fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_fine = False
        if not is_fine:
            raise ValueError("must begin with http:// or https:// and name a host")
        return url

    @field_validator("retention_at")
    @classmethod
    def _is_a_time_of_day(cls, written: str) -> str:
        if not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", written):
            raise ValueError("must be a time of day from 00:00 to 23:59, by UTC, e.g. 03:37")
        return written

    @field_validator("oidc_domain")
    @classmethod
    def _is_a_domain(cls, domain: str | None) -> str | None:
        if domain is not None and not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", domain):
            raise ValueError("must be a domain, e.g. example.com, without @")
        return domain

    @field_validator("objects_url", "archive_url")
    @classmethod
    def _is_a_place(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("takes no credentials and no options: those of S3 are read from the AWS_… variables")
        is_directory = parts.scheme == "file" and not parts.netloc and parts.path.strip("/")
        if not is_directory and not (parts.scheme == "s3" and parts.hostname):
            raise ValueError("must be file:///directory, with three slashes, or s3://bucket/prefix")
        return url.rstrip("/")

    @field_validator("allow_private_targets", mode="before")
    @classmethod
    def _is_allowed_or_networks(cls, written: object) -> object:
        if not isinstance(written, str):
            return written
        if (switch := _SWITCH.get(written.strip().lower())) is not None:
            return switch
        return ",".join(map(str, parse_networks(_split_names(written))))

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, written: str | None) -> str | None:
        return None if written is None else ",".join(map(str, parse_networks(_split_names(written))))

    @field_validator("metrics_tenants")
    @classmethod
    def _are_few_names(cls, names: str | None) -> str | None:
        if len(_split_names(names)) > TENANTS_SHOWN:
            raise ValueError(f"must name at most {TENANTS_SHOWN} tenants: each has series of its own")
        return names

    @field_validator("trace_url")
    @classmethod
    def _leads_to_a_trace(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            is_http = urlsplit(url).scheme in {"http", "https"} and bool(urlsplit(url).hostname)
        except ValueError:
            is_http = False
        if not is_http or "{trace_id}" not in url:
            raise ValueError("must be http:// or https:// with {trace_id} in it: https://host/trace/{trace_id}")
        return url

    @field_validator("audit_key")
    @classmethod
    def _are_long_keys(cls, keys: str | None) -> str | None:
        if keys is not None and any(len(key) < LEAST_KEY for key in _split_names(keys) or [""]):
            raise ValueError(f"must have at least {LEAST_KEY} characters: make one with `openssl rand -hex 32`")
        return keys

    @field_validator("shell_env")
    @classmethod
    def _is_a_list_of_names(cls, names: str | None) -> str | None:
        if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in _split_names(names)):
            raise ValueError("must be names of variables separated by commas, e.g. JAVA_HOME,NODE_ENV")
        return names

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        if self.auth == "off" and not self.on_loopback:
            raise ValueError(
                f"auth=off would let anyone who reaches {self.host} run jobs: listen on 127.0.0.1, or make a key with"
                " `ondot key create` and leave auth on"
            )
        if (self.oidc_issuer is None) != (self.oidc_client_id is None):
            raise ValueError("oidc_issuer and oidc_client_id belong together: set both, or neither")
        if self.oidc_issuer is None and (self.oidc_client_secret or self.oidc_domain):
            raise ValueError("oidc_client_secret and oidc_domain need oidc_issuer and oidc_client_id")
        if self.smtp_url is not None and self.smtp_from is None:
            raise ValueError("smtp_url needs smtp_from, the address that e-mails come from")
        if self.pgbouncer and self.transport == "postgres" and "transport" in self.model_fields_set:
            raise ValueError(
                "transport=postgres needs LISTEN, which PgBouncer in transaction mode does not support: leave"
                " ONDOT_TRANSPORT out, or set it to local"
            )
        if (missing := self.missing_for(self.transport)) is not None:
            raise ValueError(f"transport={self.transport} needs its server: set {missing}")
        if self.coordination == "etcd" and self.etcd_url is None:
            raise ValueError("coordination=etcd needs etcd_url: set ONDOT_ETCD_URL, e.g. http://127.0.0.1:2379")
        if (self.kafka_user is None) != (self.kafka_password is None):
            raise ValueError("kafka_user and kafka_password belong together: set both, or neither")
        if self.lease_s + TAKEOVER_S > self.horizon_s / 3:
            raise ValueError(
                f"lease_s ({self.lease_s:g}) and a second for the takeover must stay below a third of horizon_s"
                f" ({self.horizon_s:g}): raise the horizon, or a node that dies delays fires"
            )
        return self

    @property
    def on_loopback(self) -> bool:
        return self.host in {"127.0.0.1", "localhost", "::1"}

    @property
    def shown_tenants(self) -> frozenset[str]:
        """The names of tenants with series of their own in /metrics; `*`: any."""
        return frozenset(_split_names(self.metrics_tenants))

    @property
    def reach(self) -> Reach:
        """Where the calls of the first tenant may go."""
        match self.allow_private_targets:
            case str(networks):
                return Reach(networks=parse_networks(_split_names(networks)))
            case is_allowed:
                return Reach(any_private=is_allowed)

    @property
    def smtp_domain(self) -> str:
        """The domain in the ids of e-mails."""
        return (self.smtp_from or "ondot.invalid").rpartition("@")[2]

    @property
    def tenants_with_shell(self) -> frozenset[str] | None:
        """By name. None: the first tenant."""
        return frozenset(_split_names(self.shell_tenants)) or None

    @property
    def pools_with_shell(self) -> frozenset[str] | None:
        """None: all of the worker's."""
        return frozenset(_split_names(self.shell_pools)) or None

    @property
    def shell_variables(self) -> list[str]:
        return _split_names(self.shell_env)

    @property
    def audit_keys(self) -> list[str]:
        return _split_names(self.audit_key)

    @property
    def needs_database_url(self) -> str:
        if self.database_url is None:
            raise Misconfigured(
                "No database: set ONDOT_DATABASE_URL=postgresql://user@host/database, or run `ondot up`,"
                " which starts its own."
            )
        return self.database_url

    @property
    def needs_etcd_url(self) -> str:
        if self.etcd_url is None:
            raise Misconfigured("No etcd: set ONDOT_ETCD_URL, e.g. http://127.0.0.1:2379.")
        return self.etcd_url


def split_keys(keys: str | None) -> list[str]:
    return [key for key in re.split(r"[,\s]+", keys or "") if key]


def _split_names(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _check_url_of(url: str | None, schemes: tuple[str, ...], example: str) -> str | None:
    """Messages do not quote it: it may contain a password."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}, e.g. {example}")
    return url


def load_settings(**flags: Any) -> Settings:
    """Read the settings; flags that are None count as not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    faults = []
    for name in SECRETS:
        path = os.environ.get(f"ONDOT_{name.upper()}_FILE")
        if path and name not in given:
            try:
                given[name] = Path(path).read_text().strip()
            except OSError as error:
                faults.append(f"ONDOT_{name.upper()}_FILE: cannot read {path}: {error.strerror}")
            except ValueError:
                faults.append(f"ONDOT_{name.upper()}_FILE: {path} is not text")
    faults.extend(_unknown_variables())
    try:
        settings = Settings(**given)
        settings._from_toml = _only_in_toml(given)
    except ValidationError as error:
        faults.extend(_sentence(fault) for fault in error.errors())
    except ValueError as error:
        faults.append(f"{TOML}: {error}")
    if faults:
        raise Misconfigured("The settings are not valid:\n" + "\n".join(f"  - {fault}" for fault in faults))
    return settings


def _only_in_toml(given: Mapping[str, Any]) -> frozenset[str]:
    if not Path(TOML).is_file():
        return frozenset()
    variables = {name.upper() for name, value in os.environ.items() if value}
    names = tomllib.loads(Path(TOML).read_text())
    return frozenset(name for name in names if name not in given and f"ONDOT_{name.upper()}" not in variables)


def _unknown_variables() -> list[str]:
    """Misspelt settings. The variables that a shell target gets are allowed: it may run `ondot` itself."""
    known = {f"ONDOT_{name.upper()}" for name in Settings.model_fields} | {
        f"ONDOT_{name.upper()}_FILE" for name in SECRETS
    }
    faults = []
    for name in sorted(os.environ):
        if name.startswith("ONDOT_") and not name.startswith("ONDOT_TEST_") and name not in known | SHELL_VARIABLES:
            close = get_close_matches(name, known, n=1)
            faults.append(f"{name}: there is no such setting" + (f"; did you mean {close[0]}?" if close else ""))
    return faults


def _sentence(fault: Any) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    # A URL may contain a password, and so may a setting with a misspelt name.
    got = f" (got {fault['input']!r})" if name in Settings.model_fields.keys() - MAY_HOLD_SECRETS else ""
    return f"ONDOT_{name.upper()}: {message}{got}"
