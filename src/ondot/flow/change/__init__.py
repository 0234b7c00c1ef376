"""Changes of a job while its fires are planned: update, patch, pause, resume, delete."""
