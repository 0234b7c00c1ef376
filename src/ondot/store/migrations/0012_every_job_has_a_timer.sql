-- Jobs are removed by the last fire of their timers. Some had no timer: one-time jobs that a debounce replaced after they
-- were changed, or that were locked for a change that changed nothing. And some had no last fire.

INSERT INTO ondot.timer (job_id, next_fire_at, fired_through, version, job_version, tenant_no, partition_no)
SELECT j.id, 'infinity', j.updated_at, 2, j.version, j.tenant_no, ondot.partition_of(j.id)
FROM ondot.job j WHERE NOT EXISTS (SELECT FROM ondot.timer t WHERE t.job_id = j.id)
ON CONFLICT DO NOTHING;

UPDATE ondot.timer t SET fired_through = j.updated_at
FROM ondot.job j
WHERE t.next_fire_at = 'infinity' AND t.fired_through IS NULL AND j.id = t.job_id AND j.state = 'ACTIVE';

-- formerly e29891340c30172b43170fd86fe9493daa86137f2d44299cda18ee3dc8401480
