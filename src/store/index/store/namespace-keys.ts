import type { Database } from "bun:sqlite";
import { drizzle } from "drizzle-orm/bun-sqlite";
import { assert } from "../../../core/index.ts";
import { namespaces } from "../schema/index.ts";
import { DamagedIndex } from "./damaged.ts";

const MAC_KEY_ID_BYTES = 16;

/** The table of namespaces in memory: a handful of rows, read once. */
export class NamespaceKeys {
  readonly #db: Database;
  readonly #keys = new Map<number, Uint8Array>();
  readonly #ids = new Map<string, number>();
  /** Ids made since `settle`: their rows go when the transaction is undone. */
  readonly #unsettled: number[] = [];
  readonly #macKeyIds = new Map<number, Uint8Array>();
  /** What was there before, of those changed since `settle`. */
  readonly #unsettledMacs = new Map<number, Uint8Array | null>();
  #nextId = 1;

  constructor(db: Database) {
    this.#db = db;
    for (const { id, key, macKeyId } of drizzle(db).select().from(namespaces).all()) {
      this.#enter(id, key);
      if (macKeyId === null) continue;
      if (macKeyId.length !== MAC_KEY_ID_BYTES) {
        throw new DamagedIndex("the MAC key of a namespace has another length");
      }
      this.#macKeyIds.set(id, Uint8Array.from(macKeyId));
    }
  }

  /** What names the MAC key of a namespace; null: it has none, as far as is known. */
  macKeyIdOf(id: number): Uint8Array | null {
    return this.#macKeyIds.get(id) ?? null;
  }

  setMacKeyId(id: number, macKeyId: Uint8Array): void {
    const known = this.macKeyIdOf(id);
    if (known !== null && Buffer.compare(known, macKeyId) === 0) return;
    this.#db.query("UPDATE namespaces SET mac_key_id = ? WHERE id = ?").run(macKeyId, id);
    if (!this.#unsettledMacs.has(id)) this.#unsettledMacs.set(id, known);
    this.#macKeyIds.set(id, macKeyId.slice());
  }

  /** Undefined where the table has no such row: a sign of damage. */
  keyOf(id: number): Uint8Array | undefined {
    return this.#keys.get(id);
  }

  /** The id of a key, which gets a row where it has none. */
  idOf(key: Uint8Array): number {
    assert(key.length === 32, "a namespace key of 32 bytes");
    const known = this.#ids.get(nameOf(key));
    if (known !== undefined) return known;
    const id = this.#nextId;
    this.#db.query("INSERT INTO namespaces (id, key) VALUES (?, ?)").run(id, key);
    this.#enter(id, key.slice());
    this.#unsettled.push(id);
    return id;
  }

  settle(): void {
    this.#unsettled.length = 0;
    this.#unsettledMacs.clear();
  }

  undo(): void {
    for (const [id, before] of this.#unsettledMacs) {
      if (before === null) this.#macKeyIds.delete(id);
      else this.#macKeyIds.set(id, before);
    }
    for (const id of this.#unsettled) {
      this.#ids.delete(nameOf(this.#keys.get(id)!));
      this.#keys.delete(id);
    }
    this.settle();
  }

  #enter(id: number, key: Uint8Array): void {
    this.#keys.set(id, key);
    this.#ids.set(nameOf(key), id);
    this.#nextId = Math.max(this.#nextId, id + 1);
  }
}

function nameOf(key: Uint8Array): string {
  return Buffer.from(key.buffer, key.byteOffset, key.byteLength).toString("latin1");
}
