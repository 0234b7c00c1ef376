-- name: record_audit :none
-- One row for each subject. Ids are made here: they contain the instant, to the microsecond.
-- $1 tenant_no, $2 actor, $3 action, $4 subjects, $5 details, $6 key_id, $7 user_id, $8 address, $9 request_id,
-- $10 home_tenant_no, $11 before, $12 after
INSERT INTO ondot.audit (id, tenant_no, actor, action, subject, detail, key_id, user_id, address, request_id,
                         home_tenant_no, before, after)
SELECT (left(replace(ondot.first_id_at(ondot.clock())::text, '-', ''), 12) || '7'
        || lpad(to_hex((date_part('microseconds', ondot.clock())::bigint % 1000 * 4096 / 1000)::integer), 3, '0')
        || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid,
       $1::integer, $2::text, $3::text, r.subject, r.detail::jsonb, $6::uuid, $7::uuid, $8::text, $9::text,
       $10::integer, $11::text::jsonb, $12::text::jsonb
FROM unnest($4::uuid[], $5::text[]) AS r(subject, detail);

-- name: list_audit :many
-- index: audit_latest or audit_subject, backwards
-- A few days at a time (store.newest).
-- $1 tenant_no, $2 subject, $3 action, $4 from id, $5 limit, $6 before id, $7 actor, $8 key_id, $9 user_id, $10 request_id
SELECT id, actor, action, subject, detail, key_id, user_id, address, request_id, home_tenant_no, before, after
FROM ondot.audit
WHERE tenant_no = $1::integer AND ($2::uuid IS NULL OR subject = $2) AND ($3::text IS NULL OR action = $3)
  AND id >= $4::uuid AND id < $6::uuid AND ($7::text IS NULL OR actor = $7) AND ($8::uuid IS NULL OR key_id = $8)
  AND ($9::uuid IS NULL OR user_id = $9) AND ($10::text IS NULL OR request_id = $10)
ORDER BY id DESC LIMIT $5::integer;
