-- By what a scheduler node coordinates (C6), and since when and why it cannot renew its lease there. The id of the installation:
-- several may share an etcd.
ALTER TABLE ondot.node ADD COLUMN coordination text NOT NULL DEFAULT 'postgres', ADD COLUMN away_since timestamptz,
    ADD COLUMN away_why text;
ALTER TABLE ondot.installation ADD COLUMN id uuid NOT NULL DEFAULT gen_random_uuid();
