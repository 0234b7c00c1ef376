-- name: find_chores :one
-- index: execution_start_by, streak_over, bulk_next, tenant_chores, audit_open_pkey, subscription_own, pool_name_key, ready_pkey, ping_due, watch_look, alert_pkey, incident_open, step_wait_due, run_look, execution_cancel, dependency_look, arrival_at, unknown_call_pkey, sink_pkey, outbox_pkey
SELECT EXISTS (SELECT FROM ondot.execution
               WHERE start_by IS NOT NULL AND start_by < ondot.clock() AND state = 'PENDING') AS expire,
       EXISTS (SELECT FROM ondot.streak WHERE failures >= pause_after) AS failing,
       EXISTS (SELECT FROM ondot.bulk WHERE state = 'RUNNING' AND coalesce(next_at, turn_at) <= ondot.clock()) AS bulk,
       EXISTS (SELECT FROM ondot.tenant WHERE has_parked AND state = 'ACTIVE') AS parked,
       EXISTS (SELECT FROM ondot.tenant WHERE state = 'DELETED' AND purged_at IS NULL) AS removal,
       EXISTS (SELECT FROM ondot.audit_open) AS seal,
       {{has_own_subscriptions}} OR EXISTS (SELECT FROM ondot.own_event) AS own_events,
       {{is_delivery_due}} <= ondot.clock()) AS deliveries,
       EXISTS (SELECT FROM ondot.ping WHERE due_at <= ondot.clock()) AS pings,
       EXISTS (SELECT FROM ondot.watch WHERE look_at <= ondot.clock()) AS expect,
       EXISTS (SELECT FROM ondot.alert) OR EXISTS (SELECT FROM ondot.incident WHERE resolved_at IS NULL) AS alerts,
       EXISTS (SELECT FROM ondot.step_wait WHERE ended_at IS NULL AND due_at IS NOT NULL AND due_at <= ondot.clock())
       OR EXISTS (SELECT FROM ondot.run WHERE look_at <= ondot.clock())
       OR EXISTS (SELECT FROM ondot.execution e
                  WHERE e.cancel_at IS NOT NULL AND e.state IN ('RUNNING', 'BLOCKED') AND e.worker_id IS NULL
                    AND EXISTS (SELECT FROM ondot.run r WHERE r.id = e.id AND r.state IN ('RUNNING', 'BLOCKED'))) AS runs,
       EXISTS (SELECT FROM ondot.dependency WHERE state <> 'SUCCEEDED' AND look_at <= ondot.clock()) AS parents,
       EXISTS (SELECT FROM ondot.arrival WHERE at < ondot.clock() - interval '1 second') AS arrivals,
       EXISTS (SELECT FROM ondot.unknown_call) AS returned,
       {{has_sinks}} OR EXISTS (SELECT FROM ondot.outbox) AS sinks;
