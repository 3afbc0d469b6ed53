import type { AgentSources } from "../api/index.ts";
import {
  type Bus,
  type BusLog,
  type BusState,
  type ConsumptionState,
  Presence,
} from "../bus/index.ts";
import type { Config } from "../config/index.ts";
import {
  AuditLog,
  type BoundIssuer,
  type CommandType,
  ControlPlane,
  ControlSubscriber,
  encodeReceipt,
  JSON_TYPE,
  type Role,
  type Sender,
} from "../control/index.ts";
import { assert, NO_NODE, type NodeId, publicUserKey, type WorkerId } from "../core/index.ts";
import type { CommandPort } from "../engine/index.ts";
import { crashPoint } from "../native/index.ts";
import { EventLog } from "../observability/activity/index.ts";
import type { Health } from "../observability/index.ts";
import type { RetentionLedger } from "../store/index/index.ts";
import {
  createAddressBatch,
  createLifecycle,
  Inspector,
  type OwnLifecycle,
} from "../store/index.ts";
import { HoldRegistry, type RememberedPins } from "../store/pins/index.ts";
import type { AgentContext } from "./agent-context.ts";
import { openConfiguredBus } from "./credentials.ts";

export interface ControlServiceParts
  extends Omit<AgentContext, "config" | "random" | "region" | "rdma"> {
  /** Returns the current configuration, which a reload replaces. */
  readonly config: () => Config;
}

const WATCH_MS = 1_000;
/** Maximum total bytes of the pins and leases passed to the next process together with the RAM. */
const HANDED_BYTES_MAX = 64 * 2 ** 20;
/** Time for which the health code stays raised after the agent has evicted a pin. */
const RELIEVED_MS = 600_000;
/**
 * Default idle period of a soft pin. After each idle period the agent halves the priority of the
 * soft pin, until the soft pin ends.
 */
const RETAIN_IDLE_MS = 3_600_000;
/** Maximum concurrent SSD reads for `warm` commands. Reads for engines take precedence. */
const WARM_READS_MAX = 8;
/** Number of rotated audit logs to keep. */
const AUDIT_FILES = 5;
/** Size at which the audit log is rotated. */
const AUDIT_BYTES = 64 * 2 ** 20;
/** Rate of one issuer, and the size of a burst. Far above what routers send. */
const COMMANDS_PER_SECOND = 20_000;

/** Keeps pins and leases, and executes commands. */
export class ControlService implements AsyncDisposable {
  readonly events: EventLog;
  readonly holds: HoldRegistry;
  readonly lifecycle: OwnLifecycle;
  readonly inspector: Inspector;
  readonly plane: ControlPlane;
  readonly #parts: ControlServiceParts;
  readonly #ledger: RetentionLedger | null;
  readonly #stop = new AbortController();
  readonly #watch: Disposable;
  #relieved = 0;
  #relievedAtMs = 0;

  private constructor(parts: ControlServiceParts, ledger: RetentionLedger | null) {
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
      retainIdleMs: () => RETAIN_IDLE_MS,
      onLeaseExpired: (ended) => this.lifecycle.purgeExpired(ended),
    });
    this.lifecycle = createLifecycle({
      store,
      holds: this.holds,
      sessions: store.sessions,
      clock,
      log: (level, text, fields) => logger.log(level, text, fields),
      limits: () => ({ ...config().control, warmReads: WARM_READS_MAX }),
      peers: parts.source,
      signal: this.#stop.signal,
    });
    this.inspector = new Inspector(store, {
      namespaces,
      native,
      holdersOf: (node: NodeId) => this.lifecycle.holdersOf(node),
      pulls: () => parts.source.puller,
    });
    this.plane = new ControlPlane({
      lifecycle: this.lifecycle,
      ledger,
      clock,
      events: this.events,
      log: logger,
      workerId: config().node.id as WorkerId,
      incarnation,
      limits: () => ({
        commandsPerSecond: COMMANDS_PER_SECOND,
        commandsBurst: COMMANDS_PER_SECOND,
        broadcast: config().nats.broadcast as readonly CommandType[],
      }),
      issuers: issuersOf(config),
      audit: auditOf(parts),
    });
    store.setPinEviction((tier, why, level) => this.holds.relieve(tier, why, level));
    store.setLossReport((node, why) => this.holds.lost(node, why));
    this.#watch = clock.every(WATCH_MS, () => this.#look());
  }

  /**
   * Opens the service and restores the previous run's pins and leases, from the ledger or from the
   * handed-over RAM. The store must have restored its blocks before the call.
   */
  static async open(
    parts: ControlServiceParts,
    ledger: RetentionLedger | null,
    handed: RememberedPins | null,
  ): Promise<ControlService> {
    const service = new ControlService(parts, ledger);
    try {
      await service.#restore(ledger, handed);
      return service;
    } catch (thrown) {
      await service[Symbol.asyncDispose]();
      throw thrown;
    }
  }

  async #restore(ledger: RetentionLedger | null, handed: RememberedPins | null): Promise<void> {
    const { logger } = this.#parts;
    const isUnheard = ledger !== null && handed !== null && handed.holds.length > 0;
    if (isUnheard) {
      const why = "kv.ssd_dir is new: its ledger records pins and leases from now on";
      logger.warn("pins and leases of the previous process dropped", { why });
    }
    const restored = await this.holds.restore(this.#finder(), handed ?? undefined);
    crashPoint("control.restored");
    if (restored.holds + restored.lostHolds > 0) {
      logger.info("pins and leases restored", { ...restored });
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
      health.raise("KV_PINS_RELIEVED", `${relieved} pins and leases evicted for space since start`);
    } else if (relieved > 0 && clock.monotonicMs() - this.#relievedAtMs > RELIEVED_MS) {
      health.clear("KV_PINS_RELIEVED");
    }
    const { auditDropped, auditFailure } = this.plane.stats();
    const lines = `${auditDropped} lines dropped since start`;
    health.report("AUDIT_LOG", auditFailure && `${auditFailure}; ${lines}`);
  }

  /**
   * Returns the pins and leases to pass to the next process with the RAM. Null if the ledger on SSD
   * keeps them.
   */
  handOver(): RememberedPins | null {
    if (this.#ledger !== null) return null;
    const { leftOut, ...handed } = this.holds.handOver(HANDED_BYTES_MAX);
    if (leftOut > 0) this.#parts.logger.warn("too many pins and leases to hand over", { leftOut });
    return handed;
  }

  /** Returns the current state of pins, leases, commands and the ledger, for status and metrics. */
  get sources(): AgentSources["control"] {
    return {
      holds: this.holds.counts(),
      figures: this.holds.figures(null),
      stats: this.plane.stats(),
      ledger: this.#ledger?.state ?? null,
    };
  }

  /**
   * Stops accepting commands. Cuts commands in progress short; each replies with its partial
   * result.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#watch[Symbol.dispose]();
    this.#stop.abort();
    await this.plane[Symbol.asyncDispose]();
    await this.holds[Symbol.asyncDispose]();
  }
}

/**
 * Returns the bytes of RAM available to pins: the arena's configured size, or the populated size if
 * the arena could not grow to the configured size.
 */
function ramBytesOf({ store: { slots }, health }: ControlServiceParts): number {
  return health.isRaised("KV_RAM_SHORT") ? slots.readyBytes : slots.arenaBytes;
}

/**
 * Returns a function that gives the issuers of the current configuration. It rereads key files only
 * if the list of issuers has changed.
 */
function issuersOf(config: () => Config): () => readonly BoundIssuer[] {
  let listed: Config["control"]["issuers"] | null = null;
  let issuers: readonly BoundIssuer[] = [];
  return () => {
    const now = config().control.issuers;
    if (now === listed) return issuers;
    listed = now;
    issuers = now.map(({ name, role, key: text }) => {
      const key = text === null ? null : publicUserKey(text);
      assert(text === null || key !== null, "configured issuer keys are valid public keys");
      return { name, role, key };
    });
    return issuers;
  };
}

function auditOf({ config, logger, clock }: ControlServiceParts): AuditLog | null {
  const { auditFile } = config().control;
  if (auditFile === null) return null;
  return new AuditLog({
    path: auditFile,
    bytesMax: AUDIT_BYTES,
    filesMax: AUDIT_FILES,
    log: logger,
    clock,
  });
}

export interface ControlBusParts
  extends Pick<AgentContext, "config" | "clock" | "random" | "logger" | "health" | "incarnation"> {
  readonly control: ControlService;
  readonly version: string;
  /** Bus to use instead of the configured NATS server. The caller owns it and closes it. */
  readonly bus?: Bus;
}

/** Interval at which the agent refreshes its entry in the NATS bucket of workers. */
const PRESENCE_MS = 10_000;
/** Maximum time, at shutdown, to send queued replies. */
const CLOSE_MS = 1_000;
/** Issuer name of commands over NATS that name no issuer. */
const NATS_ISSUER = "nats";

/** Receives commands over NATS and sends their receipts. */
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
      bus.onStatus((state) => reportHealth(health, state)),
      clock.every(WATCH_MS, () => this.#look()),
    ];
  }

  /**
   * Opens the connection to NATS without waiting until it is established. Returns null if no broker
   * is configured.
   */
  static open(parts: ControlBusParts): ControlBus | null {
    const { config, clock, random, logger, control, incarnation, version } = parts;
    const { nats, node } = config;
    const log: BusLog = (level, message, fields) => logger.log(level, message, fields);
    const bus = parts.bus ?? openConfiguredBus(nats, `hearth ${node.id}`, { clock, random, log });
    if (bus === null) return null;
    const subscriber = new ControlSubscriber({
      bus,
      plane: control.plane,
      events: control.events,
      workerId: node.id,
      incarnation,
      version,
      role: nats.role,
      replyPrefixes: nats.replyPrefixes,
      issuer: NATS_ISSUER,
      commandStream: nats.commandStream,
      publishReceipts: nats.receipts,
      publishEvents: true,
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

  /** Connection that other services share. This object closes it. */
  get bus(): Bus {
    return this.#bus;
  }

  get state(): BusState {
    return this.#bus.state;
  }

  /** Returns the current state of the bus, for status and metrics. */
  get sources(): NonNullable<AgentSources["bus"]> {
    const { state, stream, workers } = this;
    return { state, stream, workers, answers: this.#subscriber.stats() };
  }

  /** NATS stream from which commands are consumed. Null if commands arrive without a stream. */
  get stream(): ({ readonly name: string } & ConsumptionState) | null {
    const state = this.#subscriber.streamState;
    const name = this.#names.stream;
    return state === null || name === null ? null : { name, ...state };
  }

  /**
   * Bucket in which this worker is registered, and the broker's error if it rejects the
   * registration. Null if no bucket is configured.
   */
  get workers(): { readonly bucket: string; readonly why: string | null } | null {
    const { bucket } = this.#names;
    return bucket === null ? null : { bucket, why: this.#presence?.refusal ?? null };
  }

  /** Applies the reloadable settings of a new configuration: the command issuers. */
  configure({ control: { issuers } }: Pick<Config, "control">): void {
    this.#subscriber.setIssuerSubjects(issuers.some(({ key }) => key === null));
  }

  #look(): void {
    const { stream, workers } = this;
    const missing = stream?.status === "missing" ? stream : null;
    const why = missing && `${missing.name}: ${missing.why ?? "unknown"}`;
    this.#health.report("NATS_STREAM", why);
    const refused = workers?.why ?? null;
    this.#health.report("NATS_WORKERS", refused && `${workers!.bucket}: ${refused}`);
  }

  /** Stops accepting commands. The bus stays open, so that commands in progress can still reply. */
  async stopTaking(): Promise<void> {
    await this.#subscriber[Symbol.asyncDispose]();
    await this.#presence?.[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const watch of this.#watches) watch[Symbol.dispose]();
    if (this.#ownsBus) await this.#bus.close(CLOSE_MS);
  }
}

function reportHealth(health: Health, { status, why }: BusState): void {
  const isDown = status !== "connected" && status !== "closed";
  health.report("NATS_DOWN", isDown ? (why ?? "not connected yet") : null);
}

/** Issuer name of commands from engines that give no name. */
const ENGINE_ISSUER = "engine";

/**
 * Returns the port for commands that engines send over their own connections. `role` is the
 * configured role of those commands.
 */
export function engineCommands(plane: () => ControlPlane, role: () => Role): CommandPort {
  return {
    async submit(json, { name, source }, bytesMax) {
      const sender: Sender = {
        ...{ via: "local", from: "engine socket", name: name || ENGINE_ISSUER },
        ...{ role: role(), roleKey: "engine.command_role", broadcast: false },
        // No API token can have this account name. So an engine that names a router as issuer
        // cannot make the agent reject the router's own commands.
        account: `engine socket ${name}`,
      };
      const receipt = await plane().submit(json, JSON_TYPE, sender, { source });
      const encode = () => encodeReceipt(receipt, JSON_TYPE, bytesMax);
      return (await source.call(encode)) ?? encode();
    },
  };
}
