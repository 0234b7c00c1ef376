"""A job as people write it. The one place that knows its fields: API, CLI, SDK, pages and SQL use it.

In reading order, from the bytes of a request to a spec of the model, and back:

    json_text       bytes to JSON, strictly and within bounds; camelCase to snake_case
    shorthand       short forms (`cron`, `url`, `timeout_s`) to the long form
    rules           bounds and patterns that SQL checks too
    fields          the kinds of value: durations, instants, names, addresses, headers, errors
    attempt         bodies of a target and of retries, and the target's spec
    limits          bodies of rates, unique, debounce and throttle, and which fields exclude each other
    events          the body of a schedule by events
    schedule_body   bodies of a schedule, its rules and its calendar
    body            the body of a job: the one list of its fields for reading, and the spec made of it
    structs         structs of the model from bodies, by name
    schedule        a schedule's body to the model's schedule: zones, anchors, relative instants
    merge_patch     a merge patch on the long form
    errors          every fault as a sentence with a pointer into the body as it was written
    reading         a body in its long form, checked, with its faults
    parse           jobs: one, a batch, or a patch
    sent_events     events as they are sent: structured, binary, a batch
    requests        preview, run now, resume, backfill
    render          the one list of a job's fields for writing: a spec in the long form
"""
