-- Workers record which app they run, and which release of it. NULL: a worker without an app.
ALTER TABLE ondot.worker ADD COLUMN app text, ADD COLUMN app_release text;
