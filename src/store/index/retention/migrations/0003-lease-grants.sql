-- Whether the end of a lease removes its blocks: only if its maker had the grant to delete blocks.
ALTER TABLE holds ADD COLUMN purges INTEGER NOT NULL DEFAULT 0;
