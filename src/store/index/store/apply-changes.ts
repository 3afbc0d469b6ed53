import type { Database, Statement } from "bun:sqlite";
import { assert } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import { CHANGE, type ChangeBatch, key32 } from "../change-batch.ts";
import { DamagedIndex } from "./damaged.ts";
import type { NamespaceKeys } from "./namespace-keys.ts";
import { isSeal, type SealedBlock, sealOfAlias, sealOfBlock, u64Bytes, u64Of } from "./seal.ts";
import type { Tally } from "./tally.ts";

interface FoundBlock {
  readonly id: number;
  readonly seal: Uint8Array;
}

interface WholeBlock extends FoundBlock, Omit<SealedBlock, "digest" | "layer"> {
  readonly namespaceId: number;
}

const FIND = "SELECT id, seal FROM blocks WHERE digest = ? AND layer = ?";
const FIND_WHOLE = `SELECT id, seal, namespace_id AS namespaceId, parent, bytes, checksum, variant,
  last_seen AS lastSeen, uses FROM blocks WHERE digest = ? AND layer = ?`;
const INSERT = `INSERT INTO blocks (digest, layer, namespace_id, parent, bytes, checksum, variant,
  last_seen, uses, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`;
const REPLACE = `UPDATE blocks SET namespace_id = ?, parent = ?, bytes = ?, checksum = ?,
  variant = ?, last_seen = ?, uses = ?, seal = ? WHERE id = ?`;
const TOUCH = "UPDATE blocks SET last_seen = ?, uses = ?, seal = ? WHERE id = ?";
const DELETE = "DELETE FROM blocks WHERE id = ?";
const FIND_ALIASES = "SELECT seal FROM aliases WHERE digest = ? AND layer = ?";
const DELETE_ALIASES = "DELETE FROM aliases WHERE digest = ? AND layer = ?";
const FIND_ALIAS = "SELECT seal FROM aliases WHERE digest = ? AND layer = ? AND alias = ?";
const INSERT_ALIAS = `INSERT INTO aliases (digest, layer, alias, namespace_id, seal)
  VALUES (?, ?, ?, ?, ?)`;

const isZero = (bytes: Uint8Array): boolean => bytes.every((byte) => byte === 0);

/** Writes changes to the tables and keeps the tallies; the caller's transaction is around it. */
export class ChangeWriter {
  readonly #db: Database;
  readonly #keys: NamespaceKeys;
  readonly #statements = new Map<string, Statement>();

  constructor(db: Database, keys: NamespaceKeys) {
    this.#db = db;
    this.#keys = keys;
  }

  /** Throws what SQLite throws; tallies and namespaces are then to be taken back. */
  apply(batch: ChangeBatch, count: number, blocks: Tally, aliases: Tally): void {
    const checksums = new Uint8Array(batch.checksums.buffer, batch.checksums.byteOffset);
    for (let row = 0; row < count; row++) {
      const digest = key32(batch.digests, row);
      const layer = batch.layers[row]!;
      switch (batch.kinds[row]) {
        case CHANGE.put: {
          const checksum = checksums.subarray(row * 8, row * 8 + 8);
          this.#put(batch, row, { digest, layer, checksum }, blocks);
          break;
        }
        case CHANGE.remove:
          this.#remove(digest, layer, blocks, aliases);
          break;
        case CHANGE.touch:
          this.#touch(digest, layer, batch.lastSeen[row]!, batch.uses[row]!, blocks);
          break;
        default:
          this.#alias(batch, row, aliases);
      }
      crashPoint("index.row-changed");
    }
  }

  #put(
    batch: ChangeBatch,
    row: number,
    named: Pick<SealedBlock, "digest" | "layer" | "checksum">,
    blocks: Tally,
  ): void {
    const namespaceKey = key32(batch.namespaceKeys, row);
    const namespaceId = this.#keys.idOf(namespaceKey);
    const macKeyId = batch.macKeyIds.subarray(row * 16, row * 16 + 16);
    if (!isZero(macKeyId)) this.#keys.setMacKeyId(namespaceId, macKeyId);
    const link = key32(batch.links, row);
    const parent = isZero(link) ? null : link;
    const { digest, layer, checksum } = named;
    const [bytes, variant] = [batch.bytes[row]!, batch.smalls[row]!];
    const [lastSeen, uses] = [batch.lastSeen[row]!, batch.uses[row]!];
    const block = { ...named, parent, bytes, variant, lastSeen, uses };
    const seal = checkedSeal(sealOfBlock(block, namespaceKey));
    const sealBytes = u64Bytes(seal);
    const found = this.#get<FoundBlock>(FIND, digest, layer);
    const values = [namespaceId, parent, bytes, checksum, variant, lastSeen, uses, sealBytes];
    if (found === null) this.#run(INSERT, digest, layer, ...values);
    else {
      this.#run(REPLACE, ...values, found.id);
      blocks.remove(checkedSeal(u64Of(found.seal)));
    }
    blocks.add(seal);
  }

  #remove(digest: Uint8Array, layer: number, blocks: Tally, aliases: Tally): void {
    const found = this.#get<FoundBlock>(FIND, digest, layer);
    if (found === null) return;
    this.#run(DELETE, found.id);
    blocks.remove(checkedSeal(u64Of(found.seal)));
    const seals = this.#statement(FIND_ALIASES).values(digest, layer) as [Uint8Array][];
    if (seals.length === 0) return;
    this.#run(DELETE_ALIASES, digest, layer);
    for (const [seal] of seals) aliases.remove(checkedSeal(u64Of(seal)));
  }

  #touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number, blocks: Tally): void {
    const found = this.#get<WholeBlock>(FIND_WHOLE, digest, layer);
    if (found === null) return;
    const namespaceKey = this.#keys.keyOf(found.namespaceId);
    assert(namespaceKey !== undefined, "a block's namespace has a row");
    // What has rotted since it was read must not get a new seal.
    const before = { ...found, digest, layer };
    const sealBefore = checkedSeal(sealOfBlock(before, namespaceKey));
    if (!isSeal(found.seal, sealBefore)) {
      throw new DamagedIndex("a block's row is not as it was written");
    }
    const seal = checkedSeal(sealOfBlock({ ...before, lastSeen, uses }, namespaceKey));
    this.#run(TOUCH, lastSeen, uses, u64Bytes(seal), found.id);
    blocks.remove(sealBefore);
    blocks.add(seal);
  }

  /** An alias lives and goes with the row of its block: without one it is not entered. */
  #alias(batch: ChangeBatch, row: number, aliases: Tally): void {
    const digest = key32(batch.digests, row);
    const layer = batch.layers[row]!;
    const alias = key32(batch.links, row).subarray(0, batch.smalls[row]!);
    if (this.#get<FoundBlock>(FIND, digest, layer) === null) return;
    if (this.#get<{ seal: Uint8Array }>(FIND_ALIAS, digest, layer, alias) !== null) return;
    const namespaceKey = key32(batch.namespaceKeys, row);
    const seal = checkedSeal(sealOfAlias({ digest, layer, alias }, namespaceKey));
    const namespaceId = this.#keys.idOf(namespaceKey);
    this.#run(INSERT_ALIAS, digest, layer, alias, namespaceId, u64Bytes(seal));
    aliases.add(seal);
  }

  #statement(sql: string): Statement {
    let statement = this.#statements.get(sql);
    if (statement === undefined) {
      statement = this.#db.prepare(sql);
      this.#statements.set(sql, statement);
    }
    return statement;
  }

  #get<Row>(sql: string, ...values: (Uint8Array | number)[]): Row | null {
    return this.#statement(sql).get(...values) as Row | null;
  }

  #run(sql: string, ...values: (Uint8Array | number | null)[]): void {
    this.#statement(sql).run(...values);
  }
}

function checkedSeal(seal: bigint | null): bigint {
  assert(seal !== null, "a row of the right shape");
  return seal;
}
