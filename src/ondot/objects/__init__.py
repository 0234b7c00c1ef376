"""Object storage behind `ports.objects`: a directory by default, a bucket of S3 by setting."""

from ondot.objects.obstore import open_archive, open_objects

__all__ = ["open_archive", "open_objects"]
