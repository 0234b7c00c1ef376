"""Operating system processes that a worker starts: confined, watched, and ended with all their descendants."""
