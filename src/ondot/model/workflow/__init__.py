"""Workflows as data, and the pure functions over them (W1 to W9).

    spec        what a user registers: steps, their rules and targets

Nothing here does I/O. A run is one execution of a job whose target is a workflow.
"""
