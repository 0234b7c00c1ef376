-- ondot.options_of(tenant, function, payload): the options of a function that a worker has registered, as fields of a spec:
-- those of its newest live release, else of its newest; '{}' if it is not known. Keys that name arguments are filled in as
-- the SDK does it: text as it is, all else as JSON. A key that names an argument which the payload does not have is left out
-- with what belongs to it. `unique`, `debounce` and `throttle` are not for jobs of a transaction.
-- It runs with the rights of its owner: a program that enqueues needs no right to read what is registered.
-- Callers: ondot.enqueue.
CREATE OR REPLACE FUNCTION ondot.options_of(tenant text, function text, payload jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    options jsonb;
    arguments jsonb;
    field text;
    filled text;
    part jsonb;
BEGIN
    SELECT f.enqueued::jsonb,
           f.argument_defaults::jsonb || CASE WHEN jsonb_typeof(options_of.payload) = 'object' THEN options_of.payload ELSE '{}' END
    INTO options, arguments
    FROM ondot.tenant t JOIN ondot.known_function f ON f.tenant_no = t.tenant_no OR f.tenant_no = 0
    WHERE t.name = options_of.tenant AND t.state <> 'DELETED' AND f.name = options_of.function
    ORDER BY EXISTS (SELECT FROM ondot.worker w
                     WHERE w.state = 'ALIVE' AND w.app = f.app AND w.app_release = f.release
                       AND (w.tenant_nos IS NULL OR t.tenant_no = ANY (w.tenant_nos))) DESC,
             f.registered_at DESC, f.app
    LIMIT 1;
    IF options IS NULL THEN
        RETURN '{}';
    END IF;
    FOREACH field IN ARRAY ARRAY['key', 'order_key'] LOOP
        CONTINUE WHEN jsonb_typeof(options #> ARRAY['limits', field]) IS DISTINCT FROM 'array';
        filled := '';
        FOR part IN SELECT * FROM jsonb_array_elements(options #> ARRAY['limits', field]) LOOP
            IF jsonb_typeof(part) = 'string' THEN
                filled := filled || (part #>> '{}');
            ELSIF jsonb_typeof(arguments->(part->>'argument')) IN ('object', 'array') THEN
                RAISE EXCEPTION 'The argument % is part of a key of %, and is no text, number or boolean.',
                    quote_literal(part->>'argument'), quote_literal(options_of.function)
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Create the job by POST /v1/jobs.';
            ELSE
                -- NULL if there is no such argument; the JSON null is the text null.
                filled := filled || CASE WHEN arguments ? (part->>'argument')
                                         THEN coalesce(arguments->>(part->>'argument'), 'null') END;
            END IF;
        END LOOP;
        options := CASE WHEN filled IS NOT NULL THEN jsonb_set(options, ARRAY['limits', field], to_jsonb(filled))
                        WHEN field = 'key' THEN options #- '{limits,key}' #- '{limits,key_concurrency}' #- '{limits,key_rate}'
                        ELSE options #- '{limits,order_key}' END;
    END LOOP;
    RETURN CASE WHEN options->'limits' = '{}' THEN options - 'limits' ELSE options END;
END $$;
