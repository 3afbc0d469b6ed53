import { blob, integer, primaryKey, sqliteTable, text, unique } from "drizzle-orm/sqlite-core";

/**
 * The tables for drizzle. `store/migrations/` creates them, and a test compares both. Values of 64
 * bits or more are BLOBs (numbers in little-endian), never numbers.
 */

const bytes = (name: string) => blob(name, { mode: "buffer" });

/** A small number per namespace key, so that rows do not repeat the 32 bytes. */
export const namespaces = sqliteTable("namespaces", {
  id: integer("id").primaryKey(),
  key: bytes("key").notNull(),
  /** Null: the namespace has no MAC key, or no block was stored with one. */
  macKeyId: bytes("mac_key_id"),
});

/**
 * One row per block on SSD. The key is digest and layer, of which a BlockKey is the hash: just as
 * unique, and the digest is needed anyway, so that the hash would add 32 bytes per row. Rows are in
 * insertion order, so that the blocks of a prompt are adjacent and updated together (measured: four
 * times the rate of a table clustered by digest).
 */
export const blocks = sqliteTable(
  "blocks",
  {
    id: integer("id").primaryKey(),
    digest: bytes("digest").notNull(),
    layer: integer("layer").notNull(),
    namespaceId: integer("namespace_id").notNull(),
    parent: bytes("parent"),
    bytes: integer("bytes").notNull(),
    checksum: bytes("checksum").notNull(),
    variant: integer("variant").notNull(),
    lastSeen: integer("last_seen").notNull(),
    uses: integer("uses").notNull(),
    seal: bytes("seal").notNull(),
  },
  (table) => [unique().on(table.digest, table.layer)],
);

/** Engine hashes and page keys of a block. They are removed with its row. */
export const aliases = sqliteTable(
  "aliases",
  {
    digest: bytes("digest").notNull(),
    layer: integer("layer").notNull(),
    alias: bytes("alias").notNull(),
    namespaceId: integer("namespace_id").notNull(),
    seal: bytes("seal").notNull(),
  },
  (table) => [primaryKey({ columns: [table.digest, table.layer, table.alias] })],
);

/** One row: the owner of the index, the run that last wrote it, and the tallies of the tables. */
export const run = sqliteTable("run", {
  id: integer("id").primaryKey(),
  worker: text("worker").notNull(),
  machine: text("machine").notNull(),
  store: text("store").notNull(),
  incarnation: bytes("incarnation"),
  flushedSequence: integer("flushed_sequence").notNull(),
  clean: integer("clean", { mode: "boolean" }).notNull(),
  complete: integer("complete", { mode: "boolean" }).notNull(),
  blockCount: integer("block_count").notNull(),
  blockSum: bytes("block_sum").notNull(),
  aliasCount: integer("alias_count").notNull(),
  aliasSum: bytes("alias_sum").notNull(),
  seal: bytes("seal").notNull(),
});
