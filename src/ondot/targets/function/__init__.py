"""Calls of registered Python functions, in the worker or in a child process."""
