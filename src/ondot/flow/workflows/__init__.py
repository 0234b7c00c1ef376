"""The life of a run (W1 to W4).

    begin       a worker leases a run and makes its steps; from then on the run has no worker
    advance     ends of steps arrive: apply the rules, release what follows, look again
    release     fill in payloads, judge `if`, make the executions of steps
    end         the verdict; BLOCKED; `finally` steps; the end
    due         housekeeping: arrivals that nobody took, timeouts, requests to cancel
    control     cancel, pause, resume, give up
    attempts    what an attempt of a step needs to know
    depends     jobs that wait for other jobs, without a run

One transaction at a time works on a run: the one that has its row locked. Whichever transaction locks the row for
another reason advances the run after its commit, because advances meanwhile were skipped.
"""
