-- Issuers are a ring, too: which was written last is known, and the one written longest ago goes.
ALTER TABLE issuers ADD COLUMN used INTEGER NOT NULL DEFAULT 0;

CREATE INDEX issuers_by_use ON issuers (used);
