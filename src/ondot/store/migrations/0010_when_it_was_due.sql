-- Only a function: due_at, by which lists of executions are ordered (functions/).
SELECT;

-- formerly 07e1f2ba03c83c48b399611862a6b4b6a63f0b5638229b4480de3d11e26f416d
