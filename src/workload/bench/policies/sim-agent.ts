import type { Clock, WorkerId } from "../../../core/index.ts";
import type { CommandOutcome, PolicyCommand } from "../../../router/index.ts";
import { createLists, type Lists } from "../policy-bench.ts";
import { blockOf, type SimTrace } from "./sim-trace.ts";

export interface SimAgentOptions {
  readonly name: WorkerId;
  readonly trace: SimTrace;
  readonly clock: Clock;
  readonly ramBlocks: number;
  readonly ssdBlocks: number;
  readonly find: (worker: string) => SimAgent | null;
}

/** Bytes of KV per token of an 8B model: 32 layers, 8 heads of 128, keys and values of 16 bits. */
const TOKEN_BYTES = 131_072;
const SSD_BYTES_PER_MS = 6e6;
const PEER_BYTES_PER_MS = 3e6;
const COMMAND_MS = 1;
/** Owner of the leases that the simulated router sets. */
const ROUTER = "router";
/** Maximum share of RAM that one warm command may evict. */
const WARM_SHARE = 0.5;
/**
 * Maximum share of RAM and SSD that pins and leases protect: `control.pin_share` and
 * `pin_share_owner`.
 */
const HOLD_SHARE = 0.5;
const OWNER_SHARE = 0.25;

interface Hold {
  readonly blocks: readonly number[];
  end: Disposable;
}

type Counts = Record<string, number>;

/**
 * A simulated agent that executes commands as docs/reference/commands.md describes, without storing
 * payload.
 */
export class SimAgent {
  readonly name: WorkerId;
  tiers: SimTiers;
  readonly #options: SimAgentOptions;
  readonly #leases = new Map<string, Hold>();
  readonly #blockBytes: number;
  /** Number of blocks named by each owner's pins and leases. */
  readonly #named = new Map<string, number>();
  #readsUntilMs = 0;
  warmedBlocks = 0;

  constructor(options: SimAgentOptions) {
    this.#options = options;
    this.name = options.name;
    this.#blockBytes = options.trace.blockTokens * TOKEN_BYTES;
    this.tiers = this.#empty();
  }

  /** Simulates replacing the host: removes all blocks and leases. */
  replace(): void {
    for (const { end } of this.#leases.values()) end[Symbol.dispose]();
    this.#leases.clear();
    this.#named.clear();
    this.tiers = this.#empty();
  }

  /** Simulates a crash: removes the blocks in RAM but keeps SSD and leases. */
  loseRam(): void {
    this.tiers.ram.clear();
  }

  /** Executes a command after its network delay; resolves with the outcome. */
  send(command: PolicyCommand): Promise<CommandOutcome> {
    const { clock } = this.#options;
    return new Promise((resolve) => {
      clock.after(COMMAND_MS, () => {
        const tiers = this.tiers;
        if (command.type === "Warm") this.#warm(command, tiers, resolve);
        else resolve(this.#carryOut(command));
      });
    });
  }

  #empty(): SimTiers {
    const { trace, ramBlocks, ssdBlocks } = this.#options;
    return new SimTiers(trace, ramBlocks, ssdBlocks);
  }

  #carryOut(command: PolicyCommand): CommandOutcome {
    const names = (command.block_hashes ?? []) as readonly string[];
    const blocks = names.map(blockOf);
    const ms = Number(command.ttl_seconds ?? command.new_ttl_seconds ?? 0) * 1_000;
    const lease = String(command.lease_id);
    const owner = String(command.owner ?? ROUTER);
    switch (command.type) {
      case "Pause":
        return this.#pause(blocks, lease, ms);
      case "RenewLease":
        return this.#renew(lease, ms);
      case "RevokeLease":
        return this.#revoke(lease);
      case "Cache":
        return this.#pin(blocks, owner, ms);
      case "Prune":
        return this.#prune(blockOf(command.after_block_hash));
      case "Think":
        return this.#think(blocks);
      default:
        return { kind: "refused", why: `unknown_type: ${command.type}` };
    }
  }

  #warm(command: PolicyCommand, tiers: SimTiers, resolve: (outcome: CommandOutcome) => void) {
    const { clock, ramBlocks, find } = this.#options;
    const sources = ((command.sources ?? []) as string[]).map(find);
    const counts: Counts = { done: 0, already: 0, missing: 0, rejected: 0 };
    const coming: number[] = [];
    let ms = 0;
    for (const block of (command.block_keys as string[]).map(blockOf)) {
      const peer = sources.find((source) => source?.tiers.has(block));
      const isHere = tiers.ssd.has(block);
      if (tiers.ram.has(block)) counts.already!++;
      else if (!isHere && peer === undefined) counts.missing!++;
      else if (coming.length >= ramBlocks * WARM_SHARE) counts.rejected!++;
      else {
        coming.push(block);
        ms += this.#blockBytes / (isHere ? SSD_BYTES_PER_MS : PEER_BYTES_PER_MS);
      }
    }
    const nowMs = clock.monotonicMs();
    this.#readsUntilMs = Math.max(this.#readsUntilMs, nowMs) + ms;
    clock.after(this.#readsUntilMs - nowMs, () => {
      // In reverse order, so that parents are used more recently than their children.
      for (const block of coming.reverse()) {
        // During the delay a request may have brought the block to RAM, or it may have been
        // evicted.
        if (tiers.ram.has(block)) counts.already!++;
        else if (tiers.ram.put(block)) {
          counts.done!++;
          tiers.toSsd(block);
          tiers.warmed.add(block);
          this.warmedBlocks++;
        } else counts.rejected!++;
      }
      resolve(receipt(counts, counts.done! * this.#blockBytes));
    });
  }

  #pause(blocks: readonly number[], lease: string, ms: number): CommandOutcome {
    const { tiers } = this;
    const counts: Counts = { done: 0, missing: 0, rejected: 0 };
    const paused: number[] = [];
    for (const block of blocks) {
      if (!tiers.has(block)) counts.missing!++;
      else if (!tiers.toSsd(block)) counts.rejected!++;
      else paused.push(block);
    }
    counts.done = paused.length;
    if (paused.length === 0) return receipt(counts, 0, ms);
    const known = this.#leases.get(lease);
    const before = new Set(known?.blocks);
    const leaving = new Set(paused);
    const added = paused.filter((block) => !before.has(block) && this.#hold(block, ROUTER));
    const isUnder = new Set([...before, ...added]);
    counts.done = paused.filter((block) => isUnder.has(block)).length;
    counts.rejected! += paused.length - counts.done;
    for (const block of paused) {
      if (isUnder.has(block) && !this.#isNeededInRam(block, leaving)) tiers.ram.remove(block);
    }
    known?.end[Symbol.dispose]();
    this.#leases.set(lease, { blocks: [...isUnder], end: this.#endAfter(lease, ms) });
    return receipt(counts, paused.length * this.#blockBytes, ms);
  }

  /** Returns whether a descendant of the block stays in RAM. */
  #isNeededInRam(block: number, leaving: ReadonlySet<number>): boolean {
    const { firstChild, nextSibling } = this.#options.trace;
    for (let child = firstChild[block]; child >= 0; child = nextSibling[child]) {
      if (this.tiers.ram.has(child) && !leaving.has(child)) return true;
    }
    return false;
  }

  #renew(lease: string, ms: number): CommandOutcome {
    const known = this.#leases.get(lease);
    if (known === undefined) return receipt({ done: 0, missing: 1 }, 0);
    known.end[Symbol.dispose]();
    known.end = this.#endAfter(lease, ms);
    return receipt({ done: 1 }, 0, ms);
  }

  #endAfter(lease: string, ms: number): Disposable {
    return this.#options.clock.after(ms, () => void this.#revoke(lease));
  }

  /**
   * Ends a lease and removes those of its blocks that are unprotected and have no descendants,
   * deepest first.
   */
  #revoke(lease: string): CommandOutcome {
    const known = this.#leases.get(lease);
    if (known === undefined) return receipt({ done: 0, missing: 1 }, 0);
    this.#leases.delete(lease);
    known.end[Symbol.dispose]();
    const counts: Counts = { done: 0, held: 0 };
    for (const block of known.blocks) this.#letGo(block, ROUTER);
    for (const block of [...known.blocks].reverse()) {
      if (this.tiers.isHeld(block) || this.tiers.hasChild(block)) counts.held!++;
      else {
        this.tiers.remove(block);
        counts.done!++;
      }
    }
    return receipt(counts, 0);
  }

  #pin(blocks: readonly number[], owner: string, ms: number): CommandOutcome {
    const { tiers } = this;
    const there = blocks.filter((block) => tiers.has(block));
    const kept = there.filter((block) => this.#hold(block, owner));
    for (const block of kept) {
      this.#options.clock.after(ms, () => {
        if (this.tiers === tiers) this.#letGo(block, owner);
      });
    }
    const missing = blocks.length - there.length;
    return receipt({ done: kept.length, missing, rejected: there.length - kept.length }, 0, ms);
  }

  /**
   * Protects a block and its ancestors. Returns false if that would exceed a budget; ancestors
   * count only towards the host's budget.
   */
  #hold(block: number, owner: string): boolean {
    const { ramBlocks, ssdBlocks } = this.#options;
    const room = ramBlocks + ssdBlocks;
    const named = this.#named.get(owner) ?? 0;
    if (this.tiers.held >= room * HOLD_SHARE || named >= room * OWNER_SHARE) return false;
    this.tiers.hold(block);
    this.#named.set(owner, named + 1);
    return true;
  }

  #letGo(block: number, owner: string): void {
    this.tiers.letGo(block);
    this.#named.set(owner, Math.max(0, (this.#named.get(owner) ?? 0) - 1));
  }

  #prune(after: number): CommandOutcome {
    const counts: Counts = { done: 0, held: 0, missing: 0 };
    if (!this.tiers.has(after)) counts.missing = 1;
    for (const block of this.tiers.below(after)) {
      if (!this.tiers.has(block)) continue;
      const isKept = this.tiers.isHeld(block) || this.tiers.hasChild(block);
      counts[isKept ? "held" : "done"]++;
      if (!isKept) this.tiers.remove(block);
    }
    return receipt(counts, counts.done! * this.#blockBytes);
  }

  #think(blocks: readonly number[]): CommandOutcome {
    const there = blocks.filter((block) => this.tiers.has(block));
    for (const block of there) {
      this.tiers.transient.add(block);
      this.tiers.ssd.remove(block);
    }
    return receipt({ done: there.length, missing: blocks.length - there.length }, 0);
  }
}

function receipt(counts: Counts, bytes: number, ttlMs: number | null = null): CommandOutcome {
  return { kind: "receipt", counts, bytes, ttlSeconds: ttlMs === null ? null : ttlMs / 1_000 };
}

/** The blocks of one agent in RAM and on SSD. */
class SimTiers {
  readonly #trace: SimTrace;
  readonly ram: SimTier;
  /** The SSD tier; it holds zero blocks without an SSD. */
  readonly ssd: SimTier;
  /** Blocks that must not be written to SSD. */
  readonly transient = new Set<number>();
  /** For each block, the number of pins and leases on it or on its descendants. */
  readonly #held = new Map<number, number>();
  /** True if pinned blocks must not leave RAM, because the host has no SSD. */
  readonly #isRamKept: boolean;
  /** Blocks that a warm command brought to RAM and that no request has used since. */
  readonly warmed = new Set<number>();
  ssdWrites = 0;

  constructor(trace: SimTrace, ramBlocks: number, ssdBlocks: number) {
    this.#trace = trace;
    this.#isRamKept = ssdBlocks === 0;
    this.ssd = new SimTier(trace.items, ssdBlocks);
    this.ram = new SimTier(trace.items, ramBlocks);
  }

  /** Number of protected blocks, ancestors of the named ones included. */
  get held(): number {
    return this.#held.size;
  }

  has(block: number): boolean {
    return this.ram.has(block) || this.ssd.has(block);
  }

  /** Returns how many leading blocks are cached, and how many of these are in RAM. */
  leading(blocks: Uint32Array, from: number, to: number): { found: number; inRam: number } {
    let inRam = 0;
    let at = from;
    for (; at < to && this.has(blocks[at]); at++) if (this.ram.has(blocks[at])) inRam++;
    return { found: at - from, inRam };
  }

  /**
   * Marks the blocks of a prompt as used: each is then in RAM and written to SSD. Parents count as
   * more recently used than their children.
   */
  use(blocks: ArrayLike<number>, from: number, to: number): void {
    for (let at = to - 1; at >= from; at--) {
      this.ram.put(blocks[at]);
      this.warmed.delete(blocks[at]);
      this.toSsd(blocks[at]);
    }
  }

  remove(block: number): void {
    this.ram.remove(block);
    this.ssd.remove(block);
    this.warmed.delete(block);
  }

  isHeld(block: number): boolean {
    return this.#held.has(block);
  }

  /** Returns whether a cached block has this block as its parent. */
  hasChild(block: number): boolean {
    const { firstChild, nextSibling } = this.#trace;
    for (let child = firstChild[block]; child >= 0; child = nextSibling[child]) {
      if (this.has(child)) return true;
    }
    return false;
  }

  /** Protects the block and its ancestors. */
  hold(block: number): void {
    for (let at = block; at >= 0; at = this.#trace.parents[at]) {
      const holds = this.#held.get(at) ?? 0;
      this.#held.set(at, holds + 1);
      if (holds === 0) this.#keep(at, true);
    }
  }

  letGo(block: number): void {
    for (let at = block; at >= 0; at = this.#trace.parents[at]) {
      const left = (this.#held.get(at) ?? 1) - 1;
      if (left > 0) this.#held.set(at, left);
      else if (this.#held.delete(at)) this.#keep(at, false);
    }
  }

  #keep(block: number, isKept: boolean): void {
    this.ssd.keep(block, isKept);
    if (this.#isRamKept) this.ram.keep(block, isKept);
  }

  /** Returns the descendants of a block, children before their parents. */
  below(block: number): number[] {
    const { firstChild, nextSibling } = this.#trace;
    const found: number[] = [];
    const open = [block];
    for (let at = open.pop(); at !== undefined; at = open.pop()) {
      if (at !== block) found.push(at);
      for (let child = firstChild[at]; child >= 0; child = nextSibling[child]) open.push(child);
    }
    return found.reverse();
  }

  /** Writes the block to SSD. Returns false if it must not be written or the tier is full. */
  toSsd(block: number): boolean {
    if (this.transient.has(block)) return false;
    const isThere = this.ssd.has(block);
    if (!this.ssd.put(block)) return false;
    if (!isThere) this.ssdWrites++;
    return true;
  }
}

/** Lists of evictable blocks, the most recently used last, and of protected blocks. */
const [FREE, KEPT] = [0, 1];

/** An LRU tier that does not evict protected blocks. */
class SimTier {
  readonly #lists: Lists;
  readonly #capacity: number;
  readonly #isKept: Uint8Array;
  #size = 0;

  constructor(items: number, capacity: number) {
    this.#lists = createLists(items, 2);
    this.#capacity = capacity;
    this.#isKept = new Uint8Array(items);
  }

  has(block: number): boolean {
    return this.#lists.has(block);
  }

  /** Inserts a block or marks it as used. Returns false if the tier is full of protected blocks. */
  put(block: number): boolean {
    if (this.#lists.has(block)) this.#lists.remove(block);
    else if (this.#size < this.#capacity) this.#size++;
    else if (this.#lists.isEmpty(FREE)) return false;
    else this.#lists.remove(this.#lists.first(FREE));
    this.#lists.append(this.#isKept[block] === 1 ? KEPT : FREE, block);
    return true;
  }

  /** Moves a block to the list of protected blocks, or back to the evictable blocks. */
  keep(block: number, isKept: boolean): void {
    this.#isKept[block] = isKept ? 1 : 0;
    if (!this.#lists.has(block)) return;
    this.#lists.remove(block);
    this.#lists.append(isKept ? KEPT : FREE, block);
  }

  remove(block: number): void {
    if (!this.#lists.has(block)) return;
    this.#lists.remove(block);
    this.#size--;
  }

  clear(): void {
    for (const list of [FREE, KEPT]) {
      while (!this.#lists.isEmpty(list)) this.remove(this.#lists.first(list));
    }
  }
}
