-- 0x48525448 is "HRTH": tells this file from any other SQLite database.
PRAGMA application_id = 1213355080;

CREATE TABLE namespaces (
  id INTEGER PRIMARY KEY,
  key BLOB NOT NULL
) STRICT;

CREATE TABLE blocks (
  id INTEGER PRIMARY KEY,
  digest BLOB NOT NULL,
  layer INTEGER NOT NULL,
  namespace_id INTEGER NOT NULL,
  parent BLOB,
  bytes INTEGER NOT NULL,
  checksum BLOB NOT NULL,
  variant INTEGER NOT NULL,
  last_seen INTEGER NOT NULL,
  uses INTEGER NOT NULL,
  seal BLOB NOT NULL,
  UNIQUE (digest, layer)
) STRICT;

CREATE TABLE aliases (
  digest BLOB NOT NULL,
  layer INTEGER NOT NULL,
  alias BLOB NOT NULL,
  namespace_id INTEGER NOT NULL,
  seal BLOB NOT NULL,
  PRIMARY KEY (digest, layer, alias)
) STRICT, WITHOUT ROWID;

CREATE TABLE run (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  worker TEXT NOT NULL,
  machine TEXT NOT NULL,
  store TEXT NOT NULL,
  incarnation BLOB,
  flushed_sequence INTEGER NOT NULL,
  clean INTEGER NOT NULL,
  complete INTEGER NOT NULL,
  block_count INTEGER NOT NULL,
  block_sum BLOB NOT NULL,
  alias_count INTEGER NOT NULL,
  alias_sum BLOB NOT NULL,
  seal BLOB NOT NULL
) STRICT;
