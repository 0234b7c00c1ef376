"""Sentences for people that several surfaces share: pages, CLI, API."""
