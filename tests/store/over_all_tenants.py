"""The SQL that serves the whole installation: every block and function that reads a table of tenants without a filter
on the tenant, with its reason. One list, so that a review sees additions; `test_tenants_in_sql` fails for a block that
neither filters nor is listed (P12, T1).
"""

from typing import Final

TABLES: Final = {
    "day_table": "the partitions of tables",
    "found": "counts of the self-check",
    "function": "the text in force of SQL functions",
    "installation": "one row",
    "lease": "batches of a worker, which serves all tenants",
    "lineage": "one row",
    "listener": "where the API's processes listen",
    "migration": "the schema",
    "node": "schedulers serve all tenants",
    "partition": "a node's share of the jobs of all tenants",
    "pool": "pools belong to the installation",
    "tenant": "the tenants themselves",
    "worker": "workers serve all tenants",
}
"""Tables whose rows belong to no tenant, though each has a `tenant_no`."""

BLOCKS: Final = {
    # Master keys belong to the installation.
    "count_masters": "which master keys are in use",
    "find_other_masters": "the rotation of the master key rewraps the data keys of all tenants",
    # Schedulers and housekeeping serve every tenant; rows that they write have the tenant of the row that they read.
    "find_due_timers": "a node plans its partitions",
    "is_crowded": "a node plans its partitions",
    "plan_fires": "the tenant comes from the timer",
    "take_owed": "a node works off its partitions",
    "make_owed": "the tenant comes from the owed range",
    "put_off_owed": "ranges that this node took",
    "find_past_deadline": "housekeeping",
    "succeed_executions": "fenced by worker and attempt",
    "find_chores": "housekeeping",
    "explain_suspects": "the slots of workers are for all tenants",
    "forget_gates": "housekeeping",
    "add_missing_slots": "what runs in a pool, of all tenants",
    "forget_claims": "housekeeping",
    "call_delayed_lines": "housekeeping",
    "look_at_executions": "housekeeping",
    "look_at_ready": "housekeeping",
    "look_at_waiting": "housekeeping",
    "look_at_gated": "housekeeping",
    "look_at_slots": "housekeeping",
    "look_at_lines": "housekeeping",
    "look_at_leases": "housekeeping",
    "look_at_timers": "housekeeping",
    "lease_to_recovery": "housekeeping",
    "queue_again": "housekeeping",
    "line_up_again": "housekeeping",
    "drop_ready": "housekeeping",
    "drop_waiting": "housekeeping",
    "drop_gated": "housekeeping",
    "drop_slots": "housekeeping",
    "call_overlooked": "housekeeping",
    "drop_leases": "housekeeping",
    "find_stuck_timers": "housekeeping",
    "take_bulk": "housekeeping",
    "lock_gates_of_executions": "gates of executions that the caller then ends, each for its tenant",
    "find_streaks_over": "housekeeping",
    **dict.fromkeys(
        (
            "lock_ended_jobs",
            "lock_deleted_jobs",
            "remove_jobs",
            "lock_superseded",
            "forget_versions",
            "forget_letters",
            "forget_skipped",
            "forget_backfills",
            "forget_bulks",
        ),
        "housekeeping",
    ),
    "list_timers_after": "housekeeping",
    "sweep_late_ready": "housekeeping",
    "forget_keys": "housekeeping",
    "forget_checkpoints": "housekeeping",
    "oldest_due": "the state of the installation",
    "read_queue_depth": "the state of the installation",
    # Workers serve every tenant: they name executions that they leased, fenced by worker and attempt.
    "find_cancels": "what this worker runs",
    "scope_room": "a worker of the pool",
    "survey_lanes": "a lane names its tenant",
    "lease_executions": "a lane names its tenant",
    "find_lease": "by a lease of this worker",
    "complete_executions": "fenced by worker and attempt",
    "find_outcomes": "fenced by worker and attempt",
    "find_payloads": "of executions that this worker leased",
    "find_stopped_jobs": "of executions that this worker leased",
    "find_once_specs": "of executions that were leased and timers that are due",
    "find_specs": "of executions that were leased and timers that are due",
    "find_lost_executions": "of leases without a worker",
    "add_log_lines": "each line carries its tenant",
    "save_progress": "fenced by worker and attempt",
    "find_checkpoint": "of an execution that this worker leased",
    # The sealer serves every tenant. An entry's tenant is part of its digest, so that one of another tenant never fits.
    "list_open_entries": "the sealer",
    "read_entries": "entries that a seal lists; their tenant is part of what is hashed",
    "read_heads": "the sealer: tenants that it names",
    "list_sealed_tenants": "the sealer",
    "insert_seals": "the sealer: each seal carries its tenant",
    "close_entries": "the sealer",
    "read_sealing": "the state of the installation",
    # Before or after the tenant is known.
    "record_uses": "keys that were used, of all tenants",
    "find_callers": "says whose keys they are",
    "is_live": "of a job whose claim was locked for its tenant",
    "lock_timer": "after the job was locked for its tenant",
}

FILTERED_AROUND: Final = {
    "latest_executions": "the newest of all tenants, a bounded number, of which the tenant's are kept",
    "recent_states": "the newest of all tenants, a bounded number, of which the tenant's are counted",
    "coming_fires": "steps over the lines of all tenants, of which the tenant's are kept",
    "held_back": "steps over the lines of all tenants, of which the tenant's are kept",
    "list_pools": "steps over the lines of all tenants; only counts of the tenant are returned",
}
"""Blocks that filter on the tenant after a part of them has read rows of all tenants."""

FUNCTIONS: Final = {
    "admit": "a worker of these pools, which serves all tenants",
    "call_lines": "gates that the caller locked; a gate belongs to one tenant",
    "gated_changed": "trigger: follows the row that changed",
    "is_live": "of a job that the caller found for its tenant",
    "live_executions": "of a job that the caller found for its tenant",
    "lock_gates": "locks, and returns nothing",
    "make_gates": "creates gates of the tenant; whether one exists is asked by its id, a hash over the tenant",
    "make_gates_of": "the tenant comes from the execution's row",
    "name_rates": "trigger: follows the row that changed",
    "next_stages": "of executions that the caller found for their tenant",
    "stand_in_line": "the tenant comes from the execution's row",
    "token_at_first": "the gate of a stage; a gate belongs to one tenant",
}
"""SQL functions that read tables of tenants by ids that their callers have checked."""
