"""History that ends (O1): what must stay of a day past its retention, and how the rest goes.

- `kept`: how long each tenant's history is kept, and which days are due. Pure.
- `archive`: writes a day to files before it is rewritten, if there is a place for them.
- `rewrite`: copies what stays of a day, and puts the copy in the day's place.
- `gone`: what to answer about what went.
- `disk`: whether the disk is nearly full.
- `seals`: removes seals of the audit log whose entries are gone.
- `show`: what there is, for people.
- `objects`: deletes from storage what the rows that went have named.
"""
