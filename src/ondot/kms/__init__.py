"""Master keys behind `ports.kms`: those of `ONDOT_SECRET_KEY`."""

from ondot.kms.local import LocalKeys, generate_key, open_kms

__all__ = ["LocalKeys", "generate_key", "open_kms"]
