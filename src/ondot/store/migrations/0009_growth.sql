-- Growth: ended rows are removed by age, each kind by an index of its own, so that live rows are not read.

-- When housekeeping checks next whether the key is still in use: less and less often while its job is live.
ALTER TABLE ondot.claim ADD COLUMN look_at timestamptz NOT NULL DEFAULT ondot.clock();
CREATE INDEX claim_look ON ondot.claim (look_at);

-- Since when there is a newer version; set to later if the version was still in use when its age was over. NULL: in force.
ALTER TABLE ondot.job_version ADD COLUMN superseded_at timestamptz;
UPDATE ondot.job_version v SET superseded_at = ondot.clock() FROM ondot.job j WHERE j.id = v.job_id AND v.version < j.version;
CREATE INDEX job_version_superseded ON ondot.job_version (superseded_at) WHERE superseded_at IS NOT NULL;

CREATE INDEX job_deleted ON ondot.job (updated_at, id) WHERE state = 'DELETED';
-- Jobs without a next fire, by their last one: ended and paused jobs.
CREATE INDEX timer_over ON ondot.timer (fired_through, job_id) WHERE next_fire_at = 'infinity';
CREATE INDEX backfill_ended ON ondot.backfill (ended_at) WHERE ended_at IS NOT NULL;

-- formerly 18d8e434d3eab95d8cde20690ac14611a2e4daa294eea3b33af0ba5111720ef1
