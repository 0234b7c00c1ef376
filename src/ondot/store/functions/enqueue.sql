-- ondot.enqueue(function, payload, at, …): enqueues a function in the caller's own transaction, from any client that speaks
-- SQL: SELECT ondot.enqueue('send_invoice', '{"customer": 7}', at => now() + interval '1 hour')
-- Returns the id of the job. What is not given has the options that the function was registered with (ondot.options_of).
-- The arguments are checked by the worker: a schema is none that SQL could check.
-- Callers: users, sdk/transaction.py.
CREATE OR REPLACE FUNCTION ondot.enqueue(
    function text,
    payload jsonb DEFAULT NULL,
    at timestamptz DEFAULT NULL,
    pool text DEFAULT NULL,
    priority text DEFAULT NULL,
    name text DEFAULT NULL,
    labels jsonb DEFAULT NULL,
    max_retries integer DEFAULT NULL,
    timeout_s double precision DEFAULT NULL,
    start_deadline_s double precision DEFAULT NULL,
    tenant text DEFAULT 'default'
) RETURNS uuid LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.id FROM (SELECT
        -- NULL arguments are left out.
        format('{%s}', concat_ws(',',
            '"name":' || to_json(coalesce(enqueue.name, enqueue.function))::text,
            '"target":' || json_build_object('kind', 'function', 'name', enqueue.function)::text,
            '"payload":' || enqueue.payload::text,
            '"pool":' || to_json(enqueue.pool)::text,
            '"priority":' || to_json(enqueue.priority)::text,
            '"labels":' || enqueue.labels::text,
            '"retry":{"max_retries":' || enqueue.max_retries::text || '}',
            '"timeout_s":' || to_json(enqueue.timeout_s)::text,
            '"start_deadline_s":' || to_json(enqueue.start_deadline_s)::text))::jsonb AS given,
        ondot.options_of(enqueue.tenant, enqueue.function, enqueue.payload) AS options
    ) o
    CROSS JOIN LATERAL ondot.submit_spec(
        (o.options || o.given
         || CASE WHEN o.given ? 'retry' THEN jsonb_build_object('retry', coalesce(o.options->'retry', '{}') || (o.given->'retry'))
                 ELSE '{}' END)::json,
        enqueue.at, enqueue.tenant) s
$$;
