-- Only functions: enqueue, submit_spec, check_spec, pool_no_of, partition_of and new_id (functions/).
SELECT;

-- formerly 05bff368bb85876cf11cbf43abb6dbe9dc4a63141b8067be3ec5bb28f128142e
