"""Workflows as data, and the pure functions over them (W1 to W9).

    spec        what a user registers: steps, their rules and targets
    states      of a step and of a run
    graph       the steps by number, and the checks of a new graph
    rules       one step: released, skipped or blocked, from how its parents ended
    progress    one pass over a run: arrivals in, changed steps and releases out
    verdict     the state of a run
    values      `{"$from": …}` in payloads
    step_spec   the spec of a job for one step

Nothing here does I/O. A run is one execution of a job whose target is a workflow.
"""
