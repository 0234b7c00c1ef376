-- Recurring jobs that ask for series of their own in the metrics (O2): few, found by this index in the order of their age.
CREATE INDEX job_version_metrics ON ondot.job_version (job_id)
    WHERE superseded_at IS NULL AND spec ->> 'metrics' = 'true';
