-- 0x4852544C is "HRTL": tells this file from the index of blocks and from any other database.
PRAGMA application_id = 1213355084;

CREATE TABLE holds (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  owner TEXT NOT NULL,
  name TEXT,
  deadline_boot_ms REAL,
  boot_id TEXT NOT NULL,
  priority INTEGER,
  idle_ms REAL,
  created_wall_ms REAL NOT NULL,
  blocks BLOB NOT NULL,
  seal BLOB NOT NULL
) STRICT;

CREATE TABLE commands (
  id INTEGER PRIMARY KEY,
  issuer TEXT NOT NULL,
  name TEXT NOT NULL,
  receipt TEXT NOT NULL,
  seal BLOB NOT NULL
) STRICT;

CREATE TABLE issuers (
  issuer TEXT PRIMARY KEY,
  epoch BLOB NOT NULL,
  seq BLOB NOT NULL,
  seal BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE ledger (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  worker TEXT NOT NULL,
  machine TEXT NOT NULL,
  incarnation BLOB NOT NULL,
  boot_id TEXT,
  boot_ms REAL,
  hold_count INTEGER NOT NULL,
  hold_sum BLOB NOT NULL,
  command_count INTEGER NOT NULL,
  command_sum BLOB NOT NULL,
  issuer_count INTEGER NOT NULL,
  issuer_sum BLOB NOT NULL,
  seal BLOB NOT NULL
) STRICT;
