"""Last night (O10): one report of what went wrong, grouped by job and cause, with the calls that repair it."""
