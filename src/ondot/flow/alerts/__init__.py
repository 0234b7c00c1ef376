"""Alerts and incidents (O4): what holds now, when it becomes an incident, and what is sent about it."""
