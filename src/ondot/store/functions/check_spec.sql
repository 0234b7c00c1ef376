-- ondot.check_spec(spec): rejects a spec that the API would reject, with a message that says what to do. Bounds and patterns
-- are filled in from document/rules.py, which the API uses too.
-- Callers: ondot.submit_spec, ondot.submit_specs.
CREATE OR REPLACE FUNCTION ondot.check_spec(spec json) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fault text;
    advice text;
    field text;
    longest integer;
    retries json := CASE WHEN json_typeof(spec) = 'object' THEN spec #> '{retry,max_retries}' END;
    target json := CASE WHEN json_typeof(spec) = 'object' THEN spec->'target' END;
BEGIN
    IF spec IS NULL OR json_typeof(spec) <> 'object' THEN
        fault := 'The spec must be a JSON object.';
        advice := 'Use ondot.enqueue(''function_name'', ''{"argument": 1}''), which makes one.';
    ELSIF coalesce(json_typeof(target), 'null') <> 'object' OR target->>'kind' IS DISTINCT FROM 'function' THEN
        fault := 'Only functions can be enqueued in a transaction.';
        advice := 'Give a function''s name; create jobs that call addresses or commands by POST /v1/jobs.';
    ELSIF coalesce(target->>'name', '') = '' OR length(target->>'name') > {{max_name}}
            OR target->>'name' ~ '[\s\u0001-\u0020\u007f-\u009f\\]' THEN
        fault := format('%L is not a function''s name.', left(target->>'name', 60));
        advice := 'Give the name under which a worker registered it, without blanks, at most {{max_name}} characters.';
    ELSIF coalesce(trim(spec->>'name'), '') = '' OR length(spec->>'name') > {{max_name}}
            OR spec->>'name' ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]' THEN
        fault := 'The name of a job must be text that is not blank, without control characters, at most {{max_name}} characters.';
        advice := 'Leave it out to name the job after its function.';
    ELSIF coalesce(json_typeof(spec->'payload'), 'null') NOT IN ('object', 'null') THEN
        fault := format('The payload must be a JSON object, but is of type %s.', json_typeof(spec->'payload'));
        advice := 'A function takes its arguments by name: ''{"customer": 7}''.';
    ELSIF octet_length((spec->'payload')::text) > {{max_payload_bytes}} THEN
        fault := format('The payload has %s bytes; at most {{max_payload_bytes}} are accepted.', octet_length((spec->'payload')::text));
        advice := 'Store it elsewhere and send its key.';
    ELSIF coalesce(spec->>'pool', 'default') !~ '^{{pool_name}}$' THEN
        fault := format('%L is not a pool''s name.', left(spec->>'pool', 80));
        advice := 'Lower-case letters, digits, _ . and -, at most 63, a letter or digit first.';
    ELSIF coalesce(spec->>'priority', 'normal') <> ALL (string_to_array('{{priorities}}', ', ')) THEN
        fault := format('%L is not a priority.', left(spec->>'priority', 60));
        advice := 'Give one of {{priorities}}.';
    ELSIF coalesce(json_typeof(spec->'labels'), 'object') <> 'object' THEN
        fault := 'The labels must be a JSON object.';
        advice := 'For example ''{"team": "billing"}''.';
    ELSIF spec->'labels' IS NOT NULL AND (SELECT count(*) > {{max_labels}} OR coalesce(bool_or(
            json_typeof(value) <> 'string' OR length(key) NOT BETWEEN 1 AND {{max_label_name}} OR length(value #>> '{}') > {{max_label_value}}), false)
            FROM json_each(spec->'labels')) THEN
        fault := 'There may be at most {{max_labels}} labels, with keys of 1 to {{max_label_name}} and values of at most '
                 '{{max_label_value}} characters, all text.';
        advice := 'For example ''{"team": "billing"}''.';
    ELSIF retries IS NOT NULL AND (json_typeof(retries) <> 'number' OR retries #>> '{}' !~ '^[0-9]{1,3}$'
            OR (retries #>> '{}')::integer > {{max_retries}}) THEN
        fault := format('max_retries must be a whole number from 0 to {{max_retries}}, but is %s.', retries);
        advice := 'It counts the attempts after the first.';
    ELSIF coalesce(json_typeof(spec->'trace'), 'string') <> 'string' OR coalesce(json_typeof(spec->'tracestate'), 'string') <> 'string'
            OR concat(spec->>'trace', spec->>'tracestate') !~ '^[ -~]*$' OR length(spec->>'tracestate') > {{max_tracestate}} THEN
        fault := 'trace and tracestate must be text in ASCII, of at most {{max_tracestate}} characters.';
        advice := 'Leave them out, or give those of a request as they came.';
    END IF;
    FOR field, longest IN VALUES ('timeout_s', {{longest_attempt_s}}), ('start_deadline_s', {{longest_wait_s}}),
            ('cancel_grace_s', {{longest_cancel_grace_s}}) LOOP
        EXIT WHEN fault IS NOT NULL;
        IF spec->field IS NOT NULL AND (json_typeof(spec->field) <> 'number'
                OR (spec->>field)::numeric NOT BETWEEN 0 AND longest
                OR field <> 'cancel_grace_s' AND (spec->>field)::numeric = 0) THEN
            fault := format('%s must be a number of seconds, more than 0 and at most %s, but is %s.', field, longest,
                            spec->field);
            advice := 'For example 300.';
        END IF;
    END LOOP;
    FOREACH field IN ARRAY ARRAY[{{at_creation}}, 'key', 'schedule', 'pause_after_failures', 'secrets', 'depends_on', 'expect',
                                 'metrics'] LOOP
        EXIT WHEN fault IS NOT NULL;
        IF coalesce(json_typeof(spec->field), 'null') <> 'null' THEN
            RAISE EXCEPTION 'A job with "%" cannot be enqueued in a transaction.', field USING
                ERRCODE = 'feature_not_supported',
                HINT = 'Create it by POST /v1/jobs, or enqueue it outside of the transaction.';
        END IF;
    END LOOP;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value', HINT = advice;
    END IF;
END $$;
