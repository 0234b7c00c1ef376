-- Deliveries that have not ended are few: those among them that nobody sends any more are looked for each minute.

CREATE INDEX delivery_unended ON ondot.delivery (created_at) WHERE ended_at IS NULL;
