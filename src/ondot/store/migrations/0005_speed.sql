-- Only functions: submit_specs, id_of and gated_changed (functions/).
SELECT;

-- formerly 94274da07d768948e34ac49438172dcdcc109d7f03dd7f9a59331f2b60853f28
