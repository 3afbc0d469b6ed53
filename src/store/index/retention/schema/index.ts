import { blob, integer, real, sqliteTable, text } from "drizzle-orm/sqlite-core";

/**
 * The ledger's tables for drizzle. `../migrations/` creates them, and a test compares both. Numbers
 * of 64 bits are BLOBs, little-endian.
 */

const bytes = (name: string) => blob(name, { mode: "buffer" });

/** Pins, soft pins and leases. */
export const holds = sqliteTable("holds", {
  id: integer("id").primaryKey(),
  kind: text("kind").notNull(),
  owner: text("owner").notNull(),
  name: text("name"),
  deadlineBootMs: real("deadline_boot_ms"),
  bootId: text("boot_id").notNull(),
  priority: integer("priority"),
  idleMs: real("idle_ms"),
  createdWallMs: real("created_wall_ms").notNull(),
  blocks: bytes("blocks").notNull(),
  seal: bytes("seal").notNull(),
  purges: integer("purges").notNull().default(0),
});

/** Blocks of a pin beyond those in its row. */
export const parts = sqliteTable("parts", {
  id: integer("id").primaryKey(),
  hold: integer("hold").notNull(),
  part: integer("part").notNull(),
  blocks: bytes("blocks").notNull(),
  seal: bytes("seal").notNull(),
});

/**
 * A ring: ids ascend, and the rows with the lowest ids are removed. A repeated command has two
 * rows.
 */
export const commands = sqliteTable("commands", {
  id: integer("id").primaryKey(),
  issuer: text("issuer").notNull(),
  name: text("name").notNull(),
  receipt: text("receipt").notNull(),
  seal: bytes("seal").notNull(),
});

/** A ring too, ordered by `used`. */
export const issuers = sqliteTable("issuers", {
  issuer: text("issuer").primaryKey(),
  epoch: bytes("epoch").notNull(),
  seq: bytes("seq").notNull(),
  seal: bytes("seal").notNull(),
  used: integer("used").notNull().default(0),
});

/** One row: the owner of the ledger, the time of the last write, and the tallies of the tables. */
export const ledger = sqliteTable("ledger", {
  id: integer("id").primaryKey(),
  worker: text("worker").notNull(),
  machine: text("machine").notNull(),
  incarnation: bytes("incarnation").notNull(),
  bootId: text("boot_id"),
  bootMs: real("boot_ms"),
  holdCount: integer("hold_count").notNull(),
  holdSum: bytes("hold_sum").notNull(),
  commandCount: integer("command_count").notNull(),
  commandSum: bytes("command_sum").notNull(),
  issuerCount: integer("issuer_count").notNull(),
  issuerSum: bytes("issuer_sum").notNull(),
  seal: bytes("seal").notNull(),
});
