"""The life of a job, one stage per file, in the order in which a job goes through them:

① submit    accept a request: its jobs and their first fires · new_jobs: the rows that are stored
            group_commit: requests of the same moment share a statement and a commit · run_now: one more execution
            idempotency: a repeated request gets the first response · work: the transaction that a stage works in
①a unique_keys  jobs with a key of their own: unique, throttled, debounced
② plan      look ahead: turn coming fires of owned partitions into executions, before they are due
②a change   update, pause, resume, delete: lock, settle every fire up to now, take back those still to come, write
            skipped: ranges of fires that do not run, without those that did
②b backfill fires of the past: catch-up after an outage, and ranges that a person asks for
②c gate     admit executions of limited jobs when they are due · pools: the limits of a pool
③ dispatch  wake the pool: a hint over the transport
④ lease     a worker leases a batch · lanes: where it looks, and which tenant's turn it is
⑤ run       one attempt: may it start, build the call, call, decide, keep output, complete · in_flight: those that run
            attempt_log, spool, output: its logs and results · handler_transaction: its effect and completion in one
⑥ complete  outcome → SUCCEEDED | RETRYING | FAILED, fenced, in batches
⑧ dead_letters, replay, retry: executions that failed and wait for a person
  cancel    any time: not due, in the queue, running
  explain   why something does not run, and when it may
  recover   lost workers → back to the queue
  check     rows that no process owns → repaired, counted, logged
  auto_pause  jobs that keep failing → paused
  zones     new rules of time zones → stored fires recomputed
  days      day partitions, made ahead
  retain    rows that have aged out, rows that were committed late

A stage's unit of work is one pass: a bounded function that tests call and roles repeat.

State changes of executions go through one door each. Outcomes of attempts are made by the constructors of
`model.completion` and written by `complete_executions`, by a worker, recovery and a handler's transaction alike;
`succeed_executions` is its fast path for plain successes. Executions that wait are ended by `store.endings`. The SQL
that makes an execution and the SQL that records its end exist once, in `store/sql/transitions.sql`: work that must
happen at every end belongs there.
"""
