import {
  type Bus,
  type BusLog,
  type BusState,
  type ConsumptionState,
  openBus,
  Presence,
} from "../bus/index.ts";
import type { Config } from "../config/index.ts";
import {
  type AuditLog,
  type BoundIssuer,
  type CommandType,
  type ControlPlane,
  type ControlSubscriber,
  createAuditLog,
  createControlPlane,
  createControlSubscriber,
  encodeReceipt,
  JSON_TYPE,
  type Role,
  type Sender,
} from "../control/index.ts";
import {
  assert,
  type Clock,
  NO_NODE,
  type NodeId,
  publicUserKey,
  type Random,
  type WorkerId,
} from "../core/index.ts";
import type { CommandPort } from "../engine/index.ts";
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
import { natsFilesOf } from "./credentials.ts";
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

export interface ControlBusParts {
  readonly config: Config;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly room: ControlRoom;
  readonly incarnation: bigint;
  readonly version: string;
  /** Instead of the one that the configuration names; not closed here. */
  readonly bus?: Bus;
}

/** How often this worker's entry in the bucket of workers is written anew. */
const PRESENCE_MS = 10_000;
/** How long answers that wait may take to go out at the end. */
const CLOSE_MS = 1_000;
/** How often it is looked whether what was made for this worker in the broker is there. */
/** Issuer of commands over NATS that name none. */
const NATS_ISSUER = "nats";

/** The connection over which commands come, from its opening to its end. */
export class ControlBus implements AsyncDisposable {
  readonly #bus: Bus;
  readonly #subscriber: ControlSubscriber;
  readonly #presence: Presence | null;
  readonly #ownsBus: boolean;
  readonly #health: Health;
  readonly #names: { readonly stream: string | null; readonly bucket: string | null };
  readonly #watches: readonly Disposable[];

  private constructor(
    { config, clock, health, bus: given }: ControlBusParts,
    bus: Bus,
    subscriber: ControlSubscriber,
    presence: Presence | null,
  ) {
    this.#bus = bus;
    this.#ownsBus = given === undefined;
    this.#subscriber = subscriber;
    this.#presence = presence;
    this.#health = health;
    this.#names = { stream: config.nats.commandStream, bucket: config.nats.workersBucket };
    this.#watches = [
      bus.onStatus((state) => tellHealth(health, state)),
      clock.every(WATCH_MS, () => this.#look()),
    ];
  }

  /** Returns at once, whether or not there is a broker; null where the configuration names none. */
  static open(parts: ControlBusParts): ControlBus | null {
    const { config, clock, logger, room, incarnation, version } = parts;
    const { nats, node } = config;
    const log: BusLog = (level, message, fields) => logger.log(level, message, fields);
    const bus = parts.bus ?? openNats(parts, log);
    if (bus === null) return null;
    const subscriber = createControlSubscriber({
      bus,
      plane: room.plane,
      events: room.events,
      workerId: node.id,
      incarnation,
      version,
      role: nats.role,
      replyPrefixes: nats.replyPrefixes,
      issuer: NATS_ISSUER,
      commandStream: nats.commandStream,
      publishReceipts: nats.receipts,
      publishEvents: nats.events,
    });
    const { workersBucket } = nats;
    const about = { id: node.id, incarnation: incarnation.toString(), version };
    const data = Buffer.from(JSON.stringify(about));
    const kept = { bus, clock, log, key: node.id, data, everyMs: PRESENCE_MS };
    const presence =
      workersBucket === null ? null : new Presence({ ...kept, bucket: workersBucket });
    const opened = new ControlBus(parts, bus, subscriber, presence);
    opened.configure(config);
    return opened;
  }

  /** For others who speak over it; closed here. */
  get bus(): Bus {
    return this.#bus;
  }

  get state(): BusState {
    return this.#bus.state;
  }

  /** Commands that were refused without being read: the control plane never saw them. */
  get unreadCommands(): { readonly busy: number; readonly rate_limited: number } {
    const { overflowed, limited } = this.#subscriber.stats();
    return { busy: overflowed, rate_limited: limited };
  }

  /** What metrics show of it. */
  snapshot(): NonNullable<ControlSnapshot["bus"]> {
    const { answered, unasked, lost, overflowed, limited } = this.#subscriber.stats();
    const answers = { answered, unasked, lost, unread: overflowed + limited };
    return { ...this.state, answers, stream: this.stream };
  }

  /** Where commands are taken from; null where it is no stream. */
  get stream(): ({ readonly name: string } & ConsumptionState) | null {
    const state = this.#subscriber.streamState;
    const name = this.#names.stream;
    return state === null || name === null ? null : { name, ...state };
  }

  /** Where this worker says that it is there, and why the broker refuses; null: it does not. */
  get workers(): { readonly bucket: string; readonly why: string | null } | null {
    const { bucket } = this.#names;
    return bucket === null ? null : { bucket, why: this.#presence?.refusal ?? null };
  }

  /** Takes what may change from a new configuration. */
  configure({ control: { issuers } }: Pick<Config, "control">): void {
    this.#subscriber.setIssuerSubjects(issuers.some(({ key }) => key === null));
  }

  #look(): void {
    const { stream, workers } = this;
    if (stream?.status === "missing") {
      this.#health.raise("NATS_STREAM", `${stream.name}: ${stream.why ?? "unknown"}`);
    } else this.#health.clear("NATS_STREAM");
    if (workers !== null && workers.why !== null) {
      this.#health.raise("NATS_WORKERS", `${workers.bucket}: ${workers.why}`);
    } else this.#health.clear("NATS_WORKERS");
  }

  /** Takes no more; answers of what is at work still go out until `close`. */
  async stopTaking(): Promise<void> {
    await this.#subscriber[Symbol.asyncDispose]();
    await this.#presence?.[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const watch of this.#watches) watch[Symbol.dispose]();
    if (this.#ownsBus) await this.#bus.close(CLOSE_MS);
  }
}

function openNats({ config, clock, random }: ControlBusParts, log: BusLog): Bus | null {
  const { nats, node } = config;
  if (nats.url === null) return null;
  return openBus({
    url: nats.url,
    name: `hearth ${node.id}`,
    ...natsFilesOf(nats),
    ...{ inboxPrefix: nats.inboxPrefix, replyPrefixes: nats.replyPrefixes },
    ...{ clock, random, log },
    limits: { queueMessages: nats.queueMessages, queueBytes: nats.queueBytes },
  });
}

function tellHealth(health: Health, { status, why }: BusState): void {
  if (status === "connected" || status === "closed") health.clear("NATS_DOWN");
  else health.raise("NATS_DOWN", why ?? "not connected yet");
}

/** Issuer of commands of an engine that has no name. */
const ENGINE_ISSUER = "engine";

/** Commands that engines send over their own connections, with the role of the configuration. */
export function engineCommands(plane: () => ControlPlane, role: () => Role): CommandPort {
  return {
    async submit(json, { name, source }, bytesMax) {
      const sender: Sender = {
        ...{ via: "local", from: "engine socket", name: name || ENGINE_ISSUER },
        ...{ role: role(), roleKey: "engine.command_role", broadcast: false },
        // No token has this name: an engine must not fence a router by claiming its issuer.
        account: `engine socket ${name}`,
      };
      const receipt = await plane().submit(json, JSON_TYPE, sender, { source });
      const encode = () => encodeReceipt(receipt, JSON_TYPE, bytesMax);
      return (await source.call(encode)) ?? encode();
    },
  };
}
