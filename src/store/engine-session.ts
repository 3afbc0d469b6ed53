import {
  assert,
  BlockFlag,
  BlockOutcome,
  DIGEST_BYTES,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../core/index.ts";
import { Acquiring } from "./acquiring.ts";
import type { AddressBatch, HandleBatch } from "./batches.ts";
import type {
  AcquireOptions,
  EngineSession,
  EngineSessionOptions,
  SessionStatus,
  SlotNames,
} from "./block-store.ts";
import { type BlockTable, NODES_PER_ALIAS_MAX, Tier } from "./blocks/index.ts";
import type { EngineMember } from "./engines/engines.ts";
import { Lookup, type LookupQuery, type LookupState, matchBlocks } from "./engines/lookup.ts";
import type { SessionPage } from "./pins/index.ts";
import { type RamVerdict, ReportBudget } from "./ram-check.ts";
import { commitSlots, Reservation } from "./reservation.ts";
import { type CopySlot, type CopySource, type SlotRef, SlotRefs } from "./slot-refs.ts";
import type { TieredStore } from "./tiered-store.ts";

/** The slot references of one engine connection, to blocks in RAM or read from a slower tier. */
export class StoreEngineSession implements EngineSession {
  readonly #store: TieredStore;
  readonly #namespace: NamespaceIndex;
  readonly #slots: SlotRefs;
  readonly #gpu: Set<NodeId>;
  readonly #reservation: Reservation;
  readonly #acquiring: Acquiring;
  readonly #lookups = new Set<Lookup>();
  readonly #reports: ReportBudget;
  #over = false;

  constructor(store: TieredStore, { namespace, handlesMax, share }: EngineSessionOptions) {
    this.#store = store;
    this.#namespace = namespace;
    this.#slots = new SlotRefs(store, namespace, handlesMax, share);
    this.#gpu = store.mirror.openWindow();
    this.#reservation = new Reservation(store, this.#slots);
    this.#acquiring = new Acquiring(this.#slots);
    this.#reports = new ReportBudget(store.clock);
  }

  get held(): number {
    return this.#slots.count;
  }

  get engine(): EngineMember {
    return this.#slots.engine;
  }

  lookup(query: LookupQuery, onPartial: (state: LookupState) => void): Lookup {
    const store = this.#store;
    const { engines } = store;
    const lookup = new Lookup({ store, engines, member: this.engine, onPartial }, query);
    try {
      lookup.begin();
    } catch (error) {
      // No other code releases the blocks that it has reserved so far.
      lookup.cancel();
      throw error;
    }
    if (lookup.isOver) return lookup;
    this.#lookups.add(lookup);
    const forget = () => void this.#lookups.delete(lookup);
    lookup.done.then(forget, forget);
    return lookup;
  }

  endLookups(): void {
    for (const lookup of [...this.#lookups]) lookup.end();
  }

  near(node: number | null): void {
    this.#slots.zone = this.#store.zoneNear(node);
  }

  match(batch: AddressBatch, tiers: number, best: Uint8Array): number {
    return matchBlocks(this.#store, this.#namespace, batch, tiers, best);
  }

  reserve(batch: AddressBatch, out: HandleBatch, namespace = this.#namespace): void {
    this.#reservation.reserve(batch, out, namespace);
  }

  commit(handles: HandleBatch): Promise<void> | null {
    const refs: (SlotRef | null)[] = [];
    for (let i = 0; i < handles.count; i++) {
      const ref = this.#slots.written(handles, i);
      if (ref === null) handles.outcome[i] = BlockOutcome.stale;
      else ref.committing = true;
      refs.push(ref);
    }
    const commit = () => commitSlots(this.#store, handles, refs, (ref) => this.#slots.forget(ref));
    const copied = refs.filter((ref) => ref?.copies?.underWay === true);
    if (copied.length === 0) return commit();
    return Promise.all(copied.map((ref) => ref!.copies!.over())).then(async () => {
      await commit();
    });
  }

  copyTarget(handles: SlotNames, i: number): CopySlot | null {
    const ref = this.#slots.written(handles, i);
    return ref === null ? null : this.#slots.copyTarget(ref);
  }

  copySource(handles: SlotNames, i: number): CopySource | null {
    const ref = this.#slots.find(handles, i);
    return ref === null || ref.reads === 0 ? null : this.#slots.copySource(ref);
  }

  abort(handles: HandleBatch): void {
    for (let i = 0; i < handles.count; i++) {
      const ref = this.#slots.written(handles, i);
      handles.outcome[i] = ref === null ? BlockOutcome.stale : BlockOutcome.ok;
      if (ref !== null) this.#slots.abort(ref);
    }
  }

  acquire(
    batch: AddressBatch,
    options: AcquireOptions,
    out: HandleBatch,
  ): Promise<HandleBatch> | null {
    return this.#acquiring.acquire(batch, options, out);
  }

  /**
   * Releases from last to first, so that the eviction order sees parents as newer than their
   * children.
   */
  release(handles: HandleBatch): void {
    for (let i = handles.count - 1; i >= 0; i--) {
      const ref = this.#slots.find(handles, i);
      if (ref === null || ref.reads === 0) {
        handles.outcome[i] = BlockOutcome.stale;
        continue;
      }
      handles.outcome[i] = BlockOutcome.ok;
      this.#slots.giveBack(ref);
    }
  }

  report(handles: HandleBatch): Promise<void> | null {
    const judged: Promise<void>[] = [];
    for (let i = handles.count - 1; i >= 0; i--) {
      const ref = this.#slots.find(handles, i);
      if (ref === null || ref.reads === 0) {
        handles.outcome[i] = BlockOutcome.stale;
        continue;
      }
      handles.outcome[i] = BlockOutcome.ok;
      const verdict = this.#store.checks.report(ref.node, ref, this.#reports);
      this.#slots.giveBack(ref);
      const judge = (is: RamVerdict) => {
        if (is === "damaged") handles.outcome[i] = BlockOutcome.corrupt;
      };
      judged.push(verdict.then(judge));
    }
    return judged.length === 0 ? null : Promise.all(judged).then(() => undefined);
  }

  gpuStored(batch: AddressBatch, out: HandleBatch): void {
    const { mirror, table } = this.#store;
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      const { outcome, node } = mirror.stored(this.#gpu, this.#namespace, batch, i);
      out.outcome[i] = outcome;
      if (node === NO_NODE || (batch.flags[i]! & BlockFlag.aliasGiven) === 0) continue;
      const added = table.addAlias(node, batch.aliasLo[i]!, batch.aliasHi[i]!);
      if (added === "added") this.#store.ssd?.aliased(node);
    }
  }

  gpuEvicted(batch: AddressBatch, out: HandleBatch): void {
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      out.outcome[i] = this.#store.mirror.evicted(this.#gpu, batch, i);
    }
  }

  sessionCommit(session: bigint, batch: AddressBatch): number {
    const { table, sessions } = this.#store;
    if (session === 0n) return BlockOutcome.rejected;
    const node = this.#visible(batch, 0);
    const below = Tier.ram | Tier.ssd;
    if (node === NO_NODE || (table.residencyOf(node) & below) === 0) return BlockOutcome.miss;
    const outcome = sessions.commit(this.#namespace, session, node);
    return outcome === "ok" ? BlockOutcome.ok : BlockOutcome.rejected;
  }

  sessionRelease(session: bigint): number {
    const outcome = this.#store.sessions.release(this.#namespace, session);
    return outcome === "ok" ? BlockOutcome.ok : BlockOutcome.miss;
  }

  sessionStatus(session: bigint): SessionStatus {
    const state = this.#store.sessions.state(this.#namespace, session);
    if (state === null) return { known: false, blocks: 0, bytes: 0 };
    return { known: true, ...state.ram };
  }

  sessionList(session: bigint, after: number, max: number): SessionPage {
    const { sessions } = this.#store;
    const namespace = this.#namespace;
    if (session === 0n) return sessions.list({ namespace, after, max });
    const found = sessions.find(session).filter((info) => info.namespace === namespace);
    return { sessions: found, next: null };
  }

  alias(batch: AddressBatch, aliases: Uint8Array, sha256: boolean, out: HandleBatch): void {
    const { table } = this.#store;
    const words = new DataView(aliases.buffer, aliases.byteOffset);
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      const node = this.#visible(batch, i);
      out.outcome[i] = BlockOutcome.miss;
      if (node === NO_NODE) continue;
      const at = i * 32;
      const added = sha256
        ? table.addSha256(node, aliases, at)
        : table.addAlias(node, words.getUint32(at, true), words.getUint32(at + 4, true));
      if (added === "added") this.#store.ssd?.aliased(node);
      out.outcome[i] = added === "full" ? BlockOutcome.rejected : BlockOutcome.ok;
    }
  }

  resolve(hashes: Uint8Array, count: number, layer: number, digests: Uint8Array): void {
    resolveHashes(this.#store.table, this.#namespace, layer, { hashes, count, digests });
  }

  /** The node of block `i` if it belongs to this namespace; otherwise NO_NODE. */
  #visible(batch: AddressBatch, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(batch.keys, i * 8);
    return node !== NO_NODE && table.namespaceOf(node) === this.#namespace ? node : NO_NODE;
  }

  abandon(): void {
    if (this.#over) return;
    this.#over = true;
    this.#store.mirror.closeWindow(this.#gpu);
    this.#acquiring.end();
    for (const lookup of [...this.#lookups]) lookup.cancel();
    this.engine.leave();
    this.#slots.quarantine();
  }

  buried(): void {
    assert(this.#over, "an engine session is abandoned before it is buried");
    this.#slots.bury();
  }
}

/**
 * Digests of the blocks with `count` 64-bit engine hashes (little-endian), each the first block
 * that was given the hash in this namespace and layer. Zeros for an unknown hash.
 */
function resolveHashes(
  table: BlockTable,
  namespace: NamespaceIndex,
  layer: number,
  { hashes, count, digests }: { hashes: Uint8Array; count: number; digests: Uint8Array },
): void {
  const words = new DataView(hashes.buffer, hashes.byteOffset);
  const found = new Int32Array(NODES_PER_ALIAS_MAX);
  const isOurs = (node: number) =>
    table.namespaceOf(node as NodeId) === namespace && table.layerOf(node as NodeId) === layer;
  for (let i = 0; i < count; i++) {
    const low = words.getUint32(i * 8, true);
    const named = table.nodesOfAlias(low, words.getUint32(i * 8 + 4, true), found);
    const node = found.subarray(0, named).find(isOurs) ?? NO_NODE;
    const at = i * DIGEST_BYTES;
    if (node === NO_NODE) digests.fill(0, at, at + DIGEST_BYTES);
    else table.readDigest(node as NodeId, digests, at);
  }
}
