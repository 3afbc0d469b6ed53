-- A hold of many blocks lies in several rows, so that a change rewrites a part of it.
CREATE TABLE parts (
  id INTEGER PRIMARY KEY,
  hold INTEGER NOT NULL,
  part INTEGER NOT NULL,
  blocks BLOB NOT NULL,
  seal BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX parts_of_hold ON parts (hold, part);
