"""The PostgreSQL that `ondot up` starts, watches and stops itself."""
