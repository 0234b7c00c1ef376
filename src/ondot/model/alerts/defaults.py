"""The alerts that an installation starts with (O4): `ondot alert defaults` creates those that do not exist yet."""

from typing import Any, Final

OF_TENANT: Final[tuple[dict[str, Any], ...]] = (
    {"name": "failing jobs", "when": {"failing": {"in_a_row": 3}}},
    {"name": "late jobs", "when": {"lateness": {"over": "2m"}}, "for": "30s"},
    {"name": "missed fires", "when": {"missed_schedule": {}}},
    {"name": "missed expectations", "when": {"expectation": {}}},
    {"name": "blocked runs", "when": {"blocked_run": {}}, "for": "1m"},
    {"name": "no workers", "when": {"workers": {"below": 1, "pool": "default"}}, "for": "1m"},
    {"name": "quotas", "when": {"quota": {}}, "for": "1m"},
    {"name": "pings", "when": {"ping": {}}},
    {"name": "failed deliveries", "when": {"delivery": {}}},
    {"name": "failing sinks", "when": {"sink": {}}},
)
OF_INSTALLATION: Final[tuple[dict[str, Any], ...]] = (
    {"name": "database", "when": {"database": {}}},
    {"name": "transport", "when": {"transport": {}}, "for": "30s"},
    {"name": "disk", "when": {"disk": {}}},
    {"name": "archive", "when": {"archive": {}}},
    {"name": "self-check", "when": {"self_check": {}}},
)
"""Only for owners."""
