"""Sinks (E3): what happens is written to the outbox, and sent from there in order, at least once."""
