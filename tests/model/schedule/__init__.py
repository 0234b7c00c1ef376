"""Schedules: next fires against an oracle that shares no code with them, and each rule by example."""
