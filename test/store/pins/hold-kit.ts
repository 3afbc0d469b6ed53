import { expect } from "bun:test";
import { equalBytes, NO_NODE, type NodeId, seededRandom } from "../../../src/core/index.ts";
import { EventLog, type HearthEvent } from "../../../src/observability/activity/index.ts";
import { BlockTable, Tier } from "../../../src/store/blocks/index.ts";
import type { RetentionLedger } from "../../../src/store/index/index.ts";
import {
  type AddedPin,
  type EndedPin,
  HoldRegistry,
  type PinKind,
  type PinRegistryOptions,
} from "../../../src/store/pins/index.ts";
import { ManualClock } from "../../support/index.ts";
import { block, digestBytes, keyWords, must, SPACE } from "../blocks/blocks.ts";
import { verifyTable } from "../blocks/verify-table.ts";
import { verifyPins } from "./verify-pins.ts";

export const BLOCK_BYTES = 100;
const WALL_MS = 1_700_000_000_000;

export interface KitOptions extends Partial<PinRegistryOptions> {
  readonly nodesMax?: number;
}

/** A registry over a real table; blocks are numbers. By default there is room for everything. */
export class HoldKit {
  readonly table: BlockTable;
  readonly clock: ManualClock;
  readonly events: EventLog;
  readonly warnings: { message: string; fields: Record<string, string | number> }[] = [];
  readonly ended: EndedPin[] = [];
  capacityBytes = 1_000_000;
  shares = { host: 0.5, owner: 0.5 };
  leaseTtlMaxMs = 86_400_000;
  retainIdleMs = 3_600_000;
  readonly holds: HoldRegistry;
  readonly #startMs: number;

  constructor(options: KitOptions = {}, clock = new ManualClock(WALL_MS)) {
    this.clock = clock;
    this.#startMs = clock.wallMs() - clock.monotonicMs();
    const nodesMax = options.nodesMax ?? 256;
    this.table = options.table ?? new BlockTable({ nodesMax, random: seededRandom(3) });
    this.events = new EventLog(clock);
    this.holds = new HoldRegistry({
      table: this.table,
      clock,
      events: this.events,
      log: { warn: (message, fields = {}) => this.warnings.push({ message, fields }) },
      ledger: null,
      nowSeconds: () => this.nowSeconds(),
      capacityBytes: () => this.capacityBytes,
      shares: () => this.shares,
      leaseTtlMaxMs: () => this.leaseTtlMaxMs,
      retainIdleMs: () => this.retainIdleMs,
      onLeaseExpired: async (ended) => {
        this.ended.push(ended);
        return { purged: ended.nodes.length, isDurable: true };
      },
      ...options,
    });
  }

  /** As the store's: the wall clock of the start, going on with the monotonic one. */
  nowSeconds(): number {
    return Math.floor((this.#startMs + this.clock.monotonicMs()) / 1_000);
  }

  /** Blocks one below the other, from the root on, on a tier. */
  put(path: readonly number[], tier: Tier = Tier.ram, bytes = BLOCK_BYTES): void {
    for (const [i, n] of path.entries()) {
      this.putOne(n, i === 0 ? null : path[i - 1]!, tier, bytes);
    }
  }

  putOne(n: number, parent: number | null, tier: Tier, bytes = BLOCK_BYTES): NodeId {
    const source = block(n, parent, bytes);
    const node = must(this.table.insertResident(source, 0, SPACE, parent !== null, tier));
    this.table.setUses(node, 1, this.nowSeconds());
    return node;
  }

  node(n: number): NodeId {
    return this.table.find(keyWords(n), 0);
  }

  nodes(...ns: number[]): NodeId[] {
    return ns.map((n) => this.node(n));
  }

  use(n: number): void {
    this.table.markUsed(this.node(n), this.nowSeconds());
  }

  hold(kind: PinKind, owner: string, blocks: number[], change: Change = {}): AddedPin {
    const nodes = this.nodes(...blocks);
    const none = { name: null, ttlMs: null, priority: null, idleMs: null, purges: true };
    return this.holds.add({ kind, owner, nodes, ...none, ...change });
  }

  pin(owner: string, blocks: number[], ttlMs: number | null = null): AddedPin {
    return this.hold("pin", owner, blocks, { ttlMs });
  }

  retain(owner: string, blocks: number[], priority: number, idleMs: number): AddedPin {
    return this.hold("retain", owner, blocks, { priority, idleMs });
  }

  lease(name: string, blocks: number[], ttlMs: number | null = null): AddedPin {
    return this.hold("lease", "router", blocks, { name, ttlMs });
  }

  unpin(owner: string, blocks: number[]): boolean[] {
    return this.holds.letGo("pin", owner, this.nodes(...blocks));
  }

  pins(...blocks: number[]): number[] {
    return blocks.map((n) => (this.node(n) === NO_NODE ? -1 : this.table.pinsOf(this.node(n))));
  }

  /** Drops what may go from a tier, oldest first; which blocks that were. */
  evict(tier: typeof Tier.ram | typeof Tier.ssd = Tier.ram, count = 999): number[] {
    const gone: number[] = [];
    const key = new Uint32Array(8);
    for (let left = count; left > 0; left--) {
      const victim = this.table.oldest(tier);
      if (victim === NO_NODE) break;
      this.table.readKey(victim, key, 0);
      gone.push(key[5]!);
      this.table.removeResidency(victim, tier);
    }
    return gone;
  }

  /** As recovery finds them: a block by its digest, where its layer is the one it was put with. */
  readonly find = (digest: Uint8Array, layer: number): NodeId => {
    const n = digest[0]! + digest[16]! * 256;
    return layer === 3 && equalBytes(digestBytes(n), digest) ? this.node(n) : NO_NODE;
  };

  said(): HearthEvent[] {
    return this.events.page(0, 10_000).events.map(({ event }) => event);
  }

  verify(): void {
    verifyTable(this.table);
    verifyPins(this.holds);
  }

  /** Another run over a ledger; blocks come back as `fill` puts them. */
  static async restarted(
    ledger: RetentionLedger,
    clock: ManualClock,
    fill: (kit: HoldKit) => void,
    options: KitOptions = {},
  ): Promise<HoldKit> {
    const kit = new HoldKit({ ...options, ledger }, clock);
    fill(kit);
    await kit.holds.restore(kit.find);
    kit.verify();
    return kit;
  }
}

type Change = {
  readonly name?: string;
  readonly ttlMs?: number | null;
  readonly priority?: number;
  readonly idleMs?: number | null;
};

export const outcomes = ({ results }: AddedPin) => results.map(({ outcome }) => outcome);

export function expectDone(added: AddedPin): number {
  expect(new Set(outcomes(added))).toEqual(new Set(["done"]));
  return added.id!;
}
