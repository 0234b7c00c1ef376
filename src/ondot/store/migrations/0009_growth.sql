-- Growth: days are made many at a time, well ahead, and those that a wrong clock made are removed.

-- What has ended is removed by age, each kind by an index of its own, so that what lives is not looked at.

-- When housekeeping looks next whether the key still says anything: less and less often while its job lives.
ALTER TABLE ondot.claim ADD COLUMN look_at timestamptz NOT NULL DEFAULT ondot.clock();
CREATE INDEX claim_look ON ondot.claim (look_at);

-- Since when there is a newer version; later if something still named it when its age was over. NULL: it is in force.
ALTER TABLE ondot.job_version ADD COLUMN superseded_at timestamptz;
UPDATE ondot.job_version v SET superseded_at = ondot.clock() FROM ondot.job j WHERE j.id = v.job_id AND v.version < j.version;
CREATE INDEX job_version_superseded ON ondot.job_version (superseded_at) WHERE superseded_at IS NOT NULL;

CREATE INDEX job_deleted ON ondot.job (updated_at, id) WHERE state = 'DELETED';
-- Jobs with no fire left, by their last: ended ones, and those that are paused.
CREATE INDEX timer_over ON ondot.timer (fired_through, job_id) WHERE next_fire_at = 'infinity';
CREATE INDEX backfill_ended ON ondot.backfill (ended_at) WHERE ended_at IS NOT NULL;

-- formerly 18d8e434d3eab95d8cde20690ac14611a2e4daa294eea3b33af0ba5111720ef1
