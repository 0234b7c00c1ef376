"""Alerts, pure (O4): the kinds and their thresholds, which jobs an alert covers, causes, and the latch."""
