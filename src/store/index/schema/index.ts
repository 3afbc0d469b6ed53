import { blob, integer, primaryKey, sqliteTable, text, unique } from "drizzle-orm/sqlite-core";

/**
 * The tables as drizzle sees them; `store/migrations/` makes them, and a test holds both together.
 * Everything of 64 bits or more is a BLOB (numbers little-endian), never a number.
 */

const bytes = (name: string) => blob(name, { mode: "buffer" });

/** A small number for each namespace key, so that rows need not carry 32 bytes each. */
export const namespaces = sqliteTable("namespaces", {
  id: integer("id").primaryKey(),
  key: bytes("key").notNull(),
  /** Null: it has none, or no block was put with it. */
  macKeyId: bytes("mac_key_id"),
});

/**
 * One row for each block on SSD. The key is what a BlockKey is the hash of, digest and layer: just
 * as unique, and the digest is needed anyway, so that the hash would be 32 bytes a row more. Rows
 * lie in the order in which they came: the blocks of a prompt lie together and are touched together
 * (measured: four times the rate of a table clustered by digest).
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

/** Engine hashes and page keys that lead to a block; they go with its row. */
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

/** One row: whose index this is, the run that wrote it last, and what the tables add up to. */
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
