"""The load that the schedules will make (S13), and how many workers it needs (C8)."""
