"""Operations on many executions, jobs, dead letters or runs: by ids, by query or filter, or all of them (O8).

`start` counts, registers and stops them, `turns` works them off, `items` and `letters` act on each item.

An operation reaches the items that existed when it was requested, in the order of their ids. Each item is claimed,
changed and counted in one transaction: a crash at any point loses nothing and repeats nothing, and an item that no
longer matches, or matches again, is reached at most once. An item that another transaction has locked is passed over
and tried again at the end. What cannot be done to one item is recorded with its reason, and the others go on.

The caller's rights are those of the moment, not of the request: a key that was revoked or has expired, a user who was
disabled or lost the right, stop the operation. A suspended tenant's operations wait.
One entry of the audit log stands for the whole operation.
"""
