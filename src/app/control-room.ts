import type { Config } from "../config/index.ts";
import {
  type AuditLog,
  type BoundIssuer,
  type CommandType,
  type ControlPlane,
  createAuditLog,
  createControlPlane,
} from "../control/index.ts";
import {
  assert,
  type Clock,
  NO_NODE,
  type NodeId,
  publicUserKey,
  type WorkerId,
} from "../core/index.ts";
import { crashPoint, type Native } from "../native/index.ts";
import { EventLog } from "../observability/activity/index.ts";
import type { ControlSnapshot, Health, Logger } from "../observability/index.ts";
import type { HoldLedger, LedgerState } from "../store/index/index.ts";
import {
  createAddressBatch,
  createInspector,
  createLifecycle,
  type Inspector,
  type Namespaces,
  type OwnLifecycle,
  type TieredStore,
} from "../store/index.ts";
import { HoldRegistry, type RememberedHolds } from "../store/pins/index.ts";
import type { PeerSource } from "./peer-source.ts";

export interface ControlRoomParts {
  /** As it is now: a reload changes it. */
  readonly config: () => Config;
  readonly native: Native;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly health: Health;
  readonly store: TieredStore;
  readonly namespaces: Namespaces;
  readonly incarnation: bigint;
  /** What a warm asks for blocks that are not on this host. */
  readonly source: PeerSource;
}

const WATCH_MS = 1_000;
/** Of the holds that go to the next process with RAM. */
const HANDED_BYTES_MAX = 64 * 2 ** 20;
/** How long a relief of pins is told as something that is the matter. */
const RELIEVED_MS = 600_000;

/** Holds, their operations and the one way in for commands, from their opening to their end. */
export class ControlRoom implements AsyncDisposable {
  readonly events: EventLog;
  readonly holds: HoldRegistry;
  readonly lifecycle: OwnLifecycle;
  readonly inspector: Inspector;
  readonly plane: ControlPlane;
  readonly #parts: ControlRoomParts;
  readonly #ledger: HoldLedger | null;
  readonly #stop = new AbortController();
  readonly #watch: Disposable;
  #relieved = 0;
  #relievedAtMs = 0;

  private constructor(parts: ControlRoomParts, ledger: HoldLedger | null) {
    const { config, clock, logger, store, namespaces, native, incarnation } = parts;
    this.#parts = parts;
    this.#ledger = ledger;
    this.events = new EventLog(clock);
    this.holds = new HoldRegistry({
      table: store.table,
      clock,
      events: this.events,
      log: logger,
      ledger,
      capacityBytes: () => ramBytesOf(parts) + (config().kv.ssdBytes ?? 0),
      shares: () => ({ host: config().control.pinShare, owner: config().control.pinShareOwner }),
      nowSeconds: () => store.nowSeconds(),
      leaseTtlMaxMs: () => config().control.leaseTtlMaxMs,
      retainIdleMs: () => config().control.retainIdleMs,
      onLeaseExpired: (ended) => this.lifecycle.purgeExpired(ended),
    });
    this.lifecycle = createLifecycle({
      store,
      holds: this.holds,
      sessions: store.sessions,
      clock,
      log: (level, text, fields) => logger.log(level, text, fields),
      limits: () => config().control,
      peers: parts.source,
      signal: this.#stop.signal,
    });
    this.inspector = createInspector(store, {
      namespaces,
      native,
      holdersOf: (node: NodeId) => this.lifecycle.holdersOf(node),
      pulls: () => parts.source.puller,
    });
    this.plane = createControlPlane({
      lifecycle: this.lifecycle,
      ledger,
      clock,
      events: this.events,
      log: logger,
      workerId: config().node.id as WorkerId,
      incarnation,
      limits: () => ({
        commandsPerSecond: config().control.commandsPerSecond,
        commandsBurst: config().control.commandsBurst,
        broadcast: config().nats.broadcast as readonly CommandType[],
      }),
      issuers: issuersOf(config),
      audit: auditOf(parts),
    });
    store.setRelief((tier, why, level) => this.holds.relieve(tier, why, level));
    store.setLost((node, why) => this.holds.lost(node, why));
    this.#watch = clock.every(WATCH_MS, () => this.#look());
  }

  /**
   * With the holds of the run before, where a ledger kept them, or without one the process before
   * handed them on with its RAM; the blocks must be back.
   */
  static async open(
    parts: ControlRoomParts,
    ledger: HoldLedger | null,
    handed: RememberedHolds | null,
  ): Promise<ControlRoom> {
    const room = new ControlRoom(parts, ledger);
    try {
      await room.#restore(ledger, handed);
      return room;
    } catch (thrown) {
      await room[Symbol.asyncDispose]();
      throw thrown;
    }
  }

  async #restore(ledger: HoldLedger | null, handed: RememberedHolds | null): Promise<void> {
    const { logger } = this.#parts;
    const isUnheard = ledger !== null && handed !== null && handed.holds.length > 0;
    if (isUnheard) {
      const why = "kv.ssd_dir is new: from now on the ledger there has them";
      logger.warn("holds of the process before are dropped", { why });
    }
    const restored = await this.holds.restore(this.#finder(), handed ?? undefined);
    crashPoint("control.restored");
    if (restored.holds + restored.lostHolds > 0) {
      logger.info("pins and leases of the run before", { ...restored });
    }
  }

  #finder(): (digest: Uint8Array, layer: number) => NodeId {
    const { store } = this.#parts;
    const batch = createAddressBatch(1);
    return (digest, layer) => {
      batch.count = 1;
      batch.layer = layer;
      batch.digests.set(digest);
      store.deriveKeys(batch, false);
      const node = store.table.find(batch.keys, 0);
      return node !== NO_NODE && store.table.residencyOf(node) !== 0 ? node : NO_NODE;
    };
  }

  #look(): void {
    const { clock, health } = this.#parts;
    const { relieved } = this.holds.counts();
    if (relieved > this.#relieved) {
      this.#relieved = relieved;
      this.#relievedAtMs = clock.monotonicMs();
      health.raise("KV_PINS_RELIEVED", `${relieved} holds were ended for room since the start`);
    } else if (relieved > 0 && clock.monotonicMs() - this.#relievedAtMs > RELIEVED_MS) {
      health.clear("KV_PINS_RELIEVED");
    }
    const { auditDropped, auditFailure } = this.plane.stats();
    if (auditFailure !== null) {
      const lines = `${auditDropped} lines were not written since the start`;
      health.raise("AUDIT_LOG", `${auditFailure}; ${lines}`);
    } else health.clear("AUDIT_LOG");
  }

  /** What goes with RAM to the process that takes it over; null where the ledger has it. */
  handOver(): RememberedHolds | null {
    if (this.#ledger !== null) return null;
    const { leftOut, ...handed } = this.holds.handOver(HANDED_BYTES_MAX);
    if (leftOut > 0) this.#parts.logger.warn("holds are not handed on: too many", { leftOut });
    return handed;
  }

  /** Null without a ledger: holds then last as long as the process. */
  get ledgerState(): LedgerState | null {
    return this.#ledger?.state ?? null;
  }

  /** What metrics show, but for the bus. */
  snapshot(): Omit<ControlSnapshot, "bus"> {
    const stats = this.plane.stats();
    const commands = Object.entries(stats.commands).map(([name, count]) => {
      const [type = "", status = ""] = name.split("/");
      return { type, status, count };
    });
    const { hostUsedBytes, hostBudgetBytes } = this.holds.figures(null);
    const state = this.ledgerState;
    return {
      holds: this.holds.counts(),
      keptBytes: hostUsedBytes,
      keptBytesMax: hostBudgetBytes,
      commands,
      refused: stats.refused,
      duplicates: stats.duplicates,
      running: stats.running,
      auditDropped: stats.auditDropped,
      ledger: state === null ? null : { pending: state.pending, dropped: state.dropped },
    };
  }

  /** Takes no more commands; what is at work ends with what it has done. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#watch[Symbol.dispose]();
    this.#stop.abort();
    await this.plane[Symbol.asyncDispose]();
    await this.holds[Symbol.asyncDispose]();
  }
}

/** Of an arena that is still growing all; of one that did not get all of its memory, that. */
function ramBytesOf({ store: { slots }, health }: ControlRoomParts): number {
  return health.isRaised("KV_RAM_SHORT") ? slots.readyBytes : slots.arenaBytes;
}

/** Those of the configuration as it is now; keys are read again only when the list changes. */
function issuersOf(config: () => Config): () => readonly BoundIssuer[] {
  let listed: Config["control"]["issuers"] | null = null;
  let issuers: readonly BoundIssuer[] = [];
  return () => {
    const now = config().control.issuers;
    if (now === listed) return issuers;
    listed = now;
    issuers = now.map(({ name, role, key: text }) => {
      const key = text === null ? null : publicUserKey(text);
      assert(text === null || key !== null, "the configuration holds public keys");
      return { name, role, key };
    });
    return issuers;
  };
}

function auditOf({ config, logger, clock }: ControlRoomParts): AuditLog | null {
  const { auditFile, auditBytesMax, auditFiles } = config().control;
  if (auditFile === null) return null;
  return createAuditLog({
    path: auditFile,
    bytesMax: auditBytesMax,
    filesMax: auditFiles,
    log: logger,
    clock,
  });
}
