import { join } from "node:path";
import {
  type BlockName,
  type BlockResult,
  type CommandOrigin,
  LAYER_ALL,
} from "../../../src/core/index.ts";
import { EventLog } from "../../../src/observability/activity/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { openRetentionLedger, type RetentionLedger } from "../../../src/store/index/index.ts";
import {
  type BlockSourcePort,
  createLifecycle,
  type Grant,
  type LifecycleLimits,
  type LifecycleParts,
  type OwnLifecycle,
  type TieredStore,
} from "../../../src/store/index.ts";
import { HoldRegistry } from "../../../src/store/pins/index.ts";
import type { ManualClock } from "../../support/index.ts";
import { batchOf, digestOf } from "../names.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { type KitOptions, type KitTest, useSsdKit } from "../ssd/use-kit.ts";

/** A block as a command names it: by the digest derived from its name in the test. */
export function named(name: string): BlockName {
  const bytes = digestOf(name);
  return { kind: "key", given: bytes.toHex(), bytes, layer: LAYER_ALL };
}

export const hashed = (value: bigint): BlockName => ({
  kind: "hash",
  given: value,
  lo: Number(value & 0xffff_ffffn),
  hi: Number(value >> 32n),
});

export const GRANTED: Grant = { mayPurge: true, fix: "" };

export const ORIGIN: CommandOrigin = { issuer: "router", command: "c-1" };

export const outcomes = (results: readonly BlockResult[]): string[] =>
  results.map(({ outcome, reason }) =>
    reason === undefined ? outcome : `${outcome} ${reason.slice(0, reason.indexOf(":"))}`,
  );

export interface LifeOptions extends Partial<LifecycleLimits> {
  readonly peers?: BlockSourcePort;
  readonly capacityBytes?: number;
  /** Wraps the dependencies of the lifecycle. */
  readonly wrap?: (parts: LifecycleParts) => LifecycleParts;
}

/** Pins, leases and lifecycle of a store, composed as in the agent. */
export class Life implements AsyncDisposable {
  readonly own: OwnLifecycle;
  readonly holds: HoldRegistry;
  readonly events: EventLog;
  readonly ledger: RetentionLedger | null;
  readonly store: TieredStore;
  readonly stop = new AbortController();

  constructor(
    store: TieredStore,
    clock: ManualClock,
    ledger: RetentionLedger | null,
    options: LifeOptions = {},
  ) {
    this.store = store;
    this.ledger = ledger;
    this.events = new EventLog(clock);
    const limits: LifecycleLimits = {
      leaseTtlMaxMs: options.leaseTtlMaxMs ?? 86_400_000,
      warmBytesMax: options.warmBytesMax ?? 2 ** 20,
      warmReads: options.warmReads ?? 4,
    };
    this.holds = new HoldRegistry({
      table: store.table,
      clock,
      events: this.events,
      log: { warn: () => undefined },
      ledger,
      nowSeconds: () => store.nowSeconds(),
      capacityBytes: () => options.capacityBytes ?? 2 ** 30,
      shares: () => ({ host: 1, owner: 1 }),
      leaseTtlMaxMs: () => limits.leaseTtlMaxMs,
      retainIdleMs: () => 3_600_000,
      onLeaseExpired: (ended) => this.own.purgeExpired(ended),
    });
    store.setPinEviction((tier, why, level) => this.holds.relieve(tier, why, level));
    store.setLossReport((node, why) => this.holds.lost(node, why));
    const parts: LifecycleParts = {
      ...{ store, holds: this.holds, sessions: store.sessions, clock },
      log: () => undefined,
      limits: () => limits,
      peers: options.peers ?? null,
      signal: this.stop.signal,
    };
    this.own = createLifecycle(options.wrap?.(parts) ?? parts);
  }

  static async open(kit: SsdKit, options: LifeOptions = {}): Promise<Life> {
    const { store, clock, incarnation, dir } = kit;
    const owner = { worker: "w", machine: "m" };
    const folder = join(dir, "index");
    const ledger = await openRetentionLedger({ folder, incarnation, owner, clock });
    const life = new Life(store, clock, ledger, options);
    await life.holds.restore((digest, layer) => {
      const batch = batchOf(["x"], layer);
      batch.digests.set(digest);
      store.deriveKeys(batch, false);
      return store.table.find(batch.keys, 0);
    });
    return life;
  }

  pin(owner: string, ...names: string[]) {
    return this.own.pin(names.map(named), { owner, ttlMs: null });
  }

  unpin(owner: string, ...names: string[]) {
    return this.own.unpin(names.map(named), { owner });
  }

  pause(lease: string, ...names: string[]) {
    return this.own.pause(names.map(named), { lease, owner: "o", ttlMs: 60_000, grant: GRANTED });
  }

  prune(after: string) {
    return this.own.prune(named(after), ORIGIN);
  }

  warm(...names: string[]) {
    return this.own.warm(names.map(named), { target: "ram", sources: [] });
  }

  /** Ends all pins and leases. */
  letGoAll(): void {
    for (const level of ["soft", "hard"] as const) {
      while (this.holds.relieve("ssd", "the test is over", level));
      while (this.holds.relieve("ram", "the test is over", level));
    }
  }

  async close(): Promise<void> {
    await this.holds[Symbol.asyncDispose]();
    await this.ledger?.[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

export interface LifeTest extends KitTest {
  readonly life: Life;
  /** Tiers of each block: "ram", "ssd", "ram+ssd" or "". */
  where(...names: string[]): string[];
  /** The same folder after a restart, with pins and leases. */
  restart(): Promise<{ kit: SsdKit; life: Life }>;
}

export function whereIs(kit: SsdKit, name: string): string {
  const node = kit.nodeOf(name);
  const { table } = kit.store;
  const there = node === 0 ? 0 : table.residencyOf(node);
  const tiers = [
    [Tier.ram, "ram"],
    [Tier.ssd, "ssd"],
  ] as const;
  return tiers
    .filter(([tier]) => (there & tier) !== 0)
    .map(([, word]) => word)
    .join("+");
}

/** Declares tests with an SSD tier, a ledger and all commands. */
export function useLife() {
  const it = useSsdKit();
  return (
    name: string,
    options: KitOptions & { readonly life?: LifeOptions },
    run: (test: LifeTest) => Promise<void>,
  ) => {
    const { life: lifeOptions = {}, ...kitOptions } = options;
    it(name, kitOptions, async (test) => {
      let kit = test.kit;
      let life = await Life.open(kit, lifeOptions);
      const restart = async () => {
        await life.close();
        kit = await test.reopen();
        life = await Life.open(kit, lifeOptions);
        return { kit, life };
      };
      const where = (...names: string[]) => names.map((block) => whereIs(kit, block));
      try {
        await run({ ...test, life, where, restart });
        test.faults("");
        life.letGoAll();
      } finally {
        await life.close();
      }
    });
  };
}
