"""The life of a job, one stage per file, in the order in which a job goes through them:

① submit    accept: idempotency, store the job and its first fire
  together  requests that come at the same moment share a statement, and a commit
  run_now   one execution more, since somebody asked for it
①a claim    jobs with a key of their own: unique, throttled, debounced
② plan      look ahead: turn coming fires of owned partitions into executions, before they are due
②a change   update, pause, resume, delete: settle, take back, write where the job stands
   settle   every fire up to now gets its end on record; take_back: what was planned and has not come yet
   skipped  ranges of fires that do not run hold none that did
②b backfill fires of the past: catch-up after an outage, and ranges that a person asks for
②c gate     admit executions of limited jobs when they are due; pools: the limits of a pool
③ dispatch  wake the pool: a hint over the transport
④ lease     a worker leases a batch; lanes: where it looks, and whose turn it is
⑤ run       one attempt: resolve target, deadline, call, outcome
            notes, spool, output: what it says and leaves behind · transact: its effect and completion in one
⑥ complete  outcome → SUCCEEDED | RETRYING | FAILED, fenced, in batches
⑧ dead_letters, replay, retry: what failed and waits for a person
  cancel    any time: not due, in the queue, running
  explain   why something does not run, and when it may
  recover   lost workers → back to the queue
  check     what nobody owns → mended, counted, told
  failing   jobs that keep failing → paused
  zones     new rules of time zones → stored fires computed anew
  retain    day partitions, what has aged out, what was committed late

A stage's unit of work is one pass: a bounded function that tests call and roles repeat. State changes of executions
are written in one place each: plan (`plan_fires`, and `make_owed` for fires of the past), lease (`lease_executions`),
complete and recover (`complete_executions`, and `succeed_executions` for most of it), change and cancel
(`take_back_executions`, `end_executions`), submit (`insert_once_jobs`, and `insert_due_jobs` for most of it,
`insert_execution`).
"""
