-- ondot.partition_of(job_id): the partition of a job, as model.ids.partition_of: its id as a number, modulo the partitions.
-- Callers: ondot.submit_spec, ondot.submit_specs, sql/jobs.sql.
CREATE OR REPLACE FUNCTION ondot.partition_of(job_id uuid) RETURNS smallint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (('x' || right(job_id::text, 2))::bit(8)::integer % {{partitions}})::smallint
$$;
