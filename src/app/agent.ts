import { AgentMetrics } from "../api/index.ts";
import type { Bus } from "../bus/index.ts";
import { type Config, diffReload } from "../config/index.ts";
import {
  assert,
  type Clock,
  formatBytes,
  HearthError,
  loopTurns,
  messageOf,
  type Random,
  sleep,
} from "../core/index.ts";
import { EngineServer, FrameCounts } from "../engine/index.ts";
import { crashPoint, type Region } from "../native/index.ts";
import { Health, type LoopLag, watchLoopLag } from "../observability/index.ts";
import { PeerSource } from "../peers/index.ts";
import type { RetentionLedger } from "../store/index/index.ts";
import {
  adoptRam,
  describeRam,
  Namespaces,
  type PersistReport,
  type PurgeAddress,
  type PurgeOutcome,
  purgeBlocks,
  type TieredStore,
} from "../store/index.ts";
import type { RememberedPins } from "../store/pins/index.ts";
import type { AgentContext } from "./agent-context.ts";
import {
  type AgentResources,
  awaitMemory,
  claimLimitsOf,
  createAgentResources,
  limitsOf,
  marksOf,
  watchArena,
} from "./agent-resources.ts";
import { ControlBus, ControlService, engineCommands } from "./control-service.ts";
import { groupNumber } from "./credentials.ts";
import type { DevicesService } from "./devices-service.ts";
import { PeersService } from "./peers-service.ts";
import { DEVICES_STOP_MS, DRAIN_MS, PURGES_MS, type ServiceManager } from "./process.ts";
import { PublishingService } from "./publishing-service.ts";
import { inheritRam, type ListenEnvironment, leaveRam, RamWatch } from "./ram-handover.ts";
import { SsdService, ssdSettings } from "./ssd-service.ts";

export interface AgentParts
  extends Pick<AgentContext, "config" | "native" | "clock" | "random" | "logger"> {
  readonly service: ServiceManager;
  readonly version: string;
  readonly commit: string;
  /** Listening sockets and stored descriptors passed by the service manager. */
  readonly listening: ListenEnvironment;
  /** Bus to use instead of NATS, for agents without a network. The caller owns it and closes it. */
  readonly bus?: Bus;
}

/** Lifecycle state of the agent. It only moves forward, in this order. */
export type AgentState = "starting" | "ready" | "draining" | "stopped";

const SMALL_PAGE = 4096;
/**
 * Interval, while the SSD tier recovers, at which the agent asks the service manager for more time.
 */
const STARTING_MS = 5_000;
/** Interval of background eviction. Memory pressure starts an eviction earlier. */
const EVICT_INTERVAL_MS = 1_000;

/** An agent. It starts its parts in order and stops them in reverse order. */
export class Agent {
  readonly incarnation: bigint;
  readonly startedMs: number;
  readonly store: TieredStore;
  readonly engine: EngineServer;
  readonly namespaces = new Namespaces();
  readonly metrics = new AgentMetrics();
  readonly health: Health;
  readonly frames = new FrameCounts();
  readonly lag: LoopLag;
  readonly #ram: RamWatch;
  readonly #parts: AgentParts;
  readonly #resources: AgentResources;
  #config: Config;
  #state: AgentState = "starting";
  #growing: Promise<void> = Promise.resolve();
  readonly #arenaWatch: Disposable;
  #cold: SsdService | null = null;
  #control: ControlService | null = null;
  /**
   * Pins and leases to hand over with RAM. At start, those received from the previous process;
   * after the control plane closed, those of this process.
   */
  #handed: RememberedPins | null = null;
  #bus: ControlBus | null = null;
  readonly #source = new PeerSource(this.namespaces);
  #peers: PeersService | null = null;
  #feed: PublishingService | null = null;
  readonly #purges = new TaskTracker();

  private constructor(parts: AgentParts, inherited: Region | null) {
    const { config, native, clock, random, logger } = parts;
    this.#parts = parts;
    this.#config = config;
    this.startedMs = clock.monotonicMs();
    this.health = new Health({ clock, log: logger });
    this.incarnation = newIncarnation(clock, random);
    const own = { ...parts, health: this.health, namespaces: this.namespaces };
    this.#resources = createAgentResources(own, inherited);
    this.store = this.#resources.store;
    this.#arenaWatch = watchArena(this.#resources.region, clock, this.health);
    loopTurns.measureCpu(() => native.threadCpuMs());
    this.lag = watchLoopLag(clock);
    this.#ram = new RamWatch(this.store, this.health, logger);
    this.engine = new EngineServer({
      socketPath: config.engine.socket,
      socketGroup:
        config.engine.socketGroup === null ? null : groupNumber(config.engine.socketGroup),
      limits: limitsOf(config),
      store: this.store,
      namespaces: this.namespaces,
      native,
      hashing: native,
      queue: this.#resources.queue,
      gpus: this.devices.gpus,
      clock,
      incarnation: this.incarnation,
      commands: engineCommands(
        () => this.control.plane,
        () => this.#config.engine.commandRole,
      ),
      frames: this.frames,
      health: this.health,
      lookedUp: (tier, outcome, seconds) => this.metrics.lookedUp(tier, outcome, seconds),
      log: (level, text, fields) => logger.log(level, text, fields),
    });
  }

  /**
   * Starts an agent. Resolves when it serves; the arena may still be growing then. Rejects if a
   * system limit is too low, and names the limit to raise.
   */
  static async start(parts: AgentParts): Promise<Agent> {
    const agent = (await Agent.#withInheritedRam(parts)) ?? (await Agent.#withNewRam(parts));
    using _starting = parts.clock.every(STARTING_MS, () => parts.service.starting("recovering"));
    try {
      if (!agent.#resources.growth.complete) await agent.#resources.growth.first();
      await agent.#openCold();
      crashPoint("start.recovered");
      await agent.devices.tryDirect();
      await agent.engine.start();
      await agent.#openBusAndPeers();
    } catch (error) {
      await agent.#stopParts();
      throw error;
    }
    agent.store.evictor.start(EVICT_INTERVAL_MS);
    agent.#ram.configure(parts.config);
    agent.#state = "ready";
    agent.#growing = agent.#grow();
    return agent;
  }

  static async #withNewRam(parts: AgentParts): Promise<Agent> {
    const { config, clock, listening } = parts;
    await awaitMemory(config.kv.ramBytes, clock, listening.LISTEN_FDS !== undefined);
    return new Agent(parts, null);
  }

  /**
   * Starts an agent with the RAM of the previous process. Resolves null if this process inherited
   * none.
   */
  static async #withInheritedRam(parts: AgentParts): Promise<Agent | null> {
    const { config, listening, logger } = parts;
    const { ramBytes, lockMemory } = config.kv;
    const inherited = inheritRam(parts, listening, { arenaBytes: ramBytes, lockMemory });
    if (inherited === null) return null;
    const { region, record } = inherited;
    const agent = new Agent(parts, region);
    agent.#resources.growth.wasThere();
    agent.#handed = record.holds;
    if (config.kv.ramHandover && adoptRam(agent.store, agent.namespaces, record)) {
      logger.info("RAM of the previous process taken over", { blocks: record.count });
      return agent;
    }
    logger.warn("RAM of the previous process dropped", {
      why: "it does not match this agent's configuration",
    });
    await agent.#stopParts();
    return null;
  }

  get state(): AgentState {
    return this.#state;
  }

  get config(): Config {
    return this.#config;
  }

  /** Returns the reasons why the agent is not ready. Empty if it is ready. */
  get notReady(): string[] {
    return this.#state === "ready" ? [] : [`the agent is ${this.#state}`];
  }

  /** The host's GPUs and NICs. */
  get devices(): DevicesService {
    return this.#resources.devices;
  }

  region() {
    const { lockedBytes, lockRefused } = this.#resources.region.state();
    return { pageBytes: this.#resources.region.pageBytes, lockedBytes, lockRefused };
  }

  /** Returns the dependencies that the services share. */
  get #own(): AgentContext & AgentParts {
    const { health, store, namespaces, incarnation } = this;
    const [region, { rdma }, source] = [this.#resources.region, this.devices, this.#source];
    return { ...this.#parts, health, store, namespaces, incarnation, region, rdma, source };
  }

  async #openCold(): Promise<void> {
    const own = this.#own;
    const openControl = async (ledger: RetentionLedger | null) => {
      const all = { ...own, config: () => this.#config };
      this.#control = await ControlService.open(all, ledger, this.#handed);
      this.#control.lifecycle.setGpuSink(this.engine.gpuSink);
    };
    this.#cold = await SsdService.open({ ...own, recovered: openControl });
    if (this.#cold === null) await openControl(null);
  }

  /** Publishes residency events. Null if events are not published. */
  get feed(): PublishingService | null {
    return this.#feed;
  }

  async #openBusAndPeers(): Promise<void> {
    const [own, control, metrics] = [this.#own, this.control, this.metrics];
    this.#bus = ControlBus.open({ ...own, control });
    const bus = this.#bus?.bus ?? null;
    this.#peers = await PeersService.open({ ...own, events: control.events, metrics, bus });
    this.#feed = await PublishingService.open({ ...own, bus });
  }

  /** Fetches and serves blocks. Null without a certificate, and while the agent starts or stops. */
  get peers(): PeersService | null {
    return this.#peers;
  }

  /**
   * Pins, leases and commands. Fails an assertion until the agent has opened its control service.
   */
  get control(): ControlService {
    assert(this.#control !== null, "a serving agent has a control service");
    return this.#control;
  }

  /** Receives commands over NATS. Null without NATS. */
  get bus(): ControlBus | null {
    return this.#bus;
  }

  async #grow(): Promise<void> {
    const { logger, service, config, clock } = this.#parts;
    await this.#resources.growth.rest((short) => this.health.raise("KV_RAM_SHORT", short.text));
    this.store.evictor.growthIsOver();
    if (this.#state !== "ready") return;
    const { lockedBytes, lockRefused } = this.#resources.region.state();
    const ready = this.#resources.growth.readyBytes;
    if (lockRefused && config.kv.lockMemory === "try") {
      const fix = 'set LimitMEMLOCK=infinity, or kv.lock_memory to "off"';
      this.health.raise("KV_LIMITS", `RAM is not locked and may be swapped: ${fix}`);
    }
    const seconds = Number(((clock.monotonicMs() - this.startedMs) / 1_000).toFixed(3));
    const page = this.#resources.region.pageBytes;
    if (config.kv.hugePages === "try" && page === SMALL_PAGE) {
      logger.info("huge pages unavailable, see hearth doctor", { page });
    }
    logger.info("arena complete", { bytes: ready, locked: lockedBytes, page, seconds });
    service.status(`serving, ${formatBytes(ready)} of RAM`);
  }

  /**
   * Applies the settings of a new configuration that a reload can change. Reports the changed
   * settings that need a restart.
   */
  reload(next: Config): void {
    const { logger } = this.#parts;
    const { changed, needsRestart, effective } = diffReload(this.#config, next);
    for (const { key, from, to } of needsRestart) {
      logger.warn("configuration key needs a restart, keeping its old value", { key, from, to });
    }
    this.#config = effective;
    const { kv, log } = effective;
    this.store.evictor.setMarks(marksOf(kv));
    this.#ram.configure(effective);
    this.store.sessions.setIdle(effective.engine.sessionIdleMs);
    this.store.ssd?.configure(ssdSettings(effective));
    this.store.readDeadlineMs = effective.engine.acquireDeadlineMs;
    this.engine.setLimits(limitsOf(effective));
    this.store.engines.book.limits = claimLimitsOf(effective);
    this.#peers?.configure(effective);
    this.#bus?.configure(effective);
    logger.setLevel(log.level);
    const keys = changed.map(({ key }) => key);
    logger.info("configuration reloaded", { changed: keys.join(" ") || "nothing" });
  }

  /**
   * Stops accepting work, waits up to 10 s for clients, then closes all parts. If `forceStop`
   * fires, stops waiting for clients immediately.
   */
  async stop(forceStop: AbortSignal): Promise<void> {
    if (this.#state === "draining" || this.#state === "stopped") return;
    this.#state = "draining";
    await this.#feed?.[Symbol.asyncDispose]();
    await this.#bus?.stopTaking();
    await this.engine.drain(DRAIN_MS, forceStop);
    crashPoint("stop.drained");
    await this.#stopPeers();
    await this.#stopControl();
    await this.#cold?.settle(this.store, forceStop);
    await this.#purges.over(this.#parts.clock, PURGES_MS);
    await this.#stopParts();
    this.#state = "stopped";
  }

  async #stopControl(): Promise<void> {
    const [control, bus] = [this.#control, this.#bus];
    [this.#control, this.#bus] = [null, null];
    await control?.[Symbol.asyncDispose]();
    if (control !== null) this.#handed = control.handOver();
    await bus?.[Symbol.asyncDispose]();
  }

  async #stopPeers(): Promise<void> {
    const peers = this.#peers;
    this.#peers = null;
    await peers?.[Symbol.asyncDispose]();
  }

  /**
   * Removes blocks from all tiers. `by` names the caller in the audit log. Throws ABORTED unless
   * the agent is ready: while it stops, the list of blocks to hand over is built only once and
   * would still contain the removed blocks.
   */
  async purge(addresses: readonly PurgeAddress[], by: string): Promise<PurgeOutcome[]> {
    this.#mustServe();
    return this.#purges.run(purgeBlocks(this.store, addresses, { reason: "purged", by }));
  }

  /**
   * Writes the blocks that exist only in RAM to SSD. Throws UNSUPPORTED without an SSD tier,
   * ABORTED unless the agent is ready.
   */
  async persist(): Promise<PersistReport> {
    this.#mustServe();
    const { ssd } = this.store;
    if (ssd !== null) return ssd.persist();
    throw new HearthError("UNSUPPORTED", "this agent has no SSD tier", { fix: "set kv.ssd_dir" });
  }

  #mustServe(): void {
    if (this.#state === "ready") return;
    throw new HearthError("ABORTED", `the agent is ${this.#state}`, { fix: "ask again later" });
  }

  async #stopParts(): Promise<void> {
    this.#resources.growth.stop();
    const { held, quarantined } = this.engine.held();
    await this.engine[Symbol.asyncDispose]();
    await this.#feed?.[Symbol.asyncDispose]();
    await this.#stopPeers();
    await this.#stopControl();
    // A GPU copy may hang. Closing waits for it without limit, so the service manager's stop
    // timeout ends the process.
    const copying = new TaskTracker();
    const quiet = copying
      .run(Promise.resolve(this.devices[Symbol.asyncDispose]()))
      .catch((why) => this.#parts.logger.error(`closing devices failed: ${messageOf(why)}`));
    await copying.over(this.#parts.clock, DEVICES_STOP_MS);
    if (this.#state === "draining" && this.#config.kv.ramHandover) {
      // Hand over no RAM while an engine reads a slot or a device writes one. The next process does
      // not know of these accesses and could reuse the slot.
      await leaveRam(this.#parts, this.#resources.region, (arena) =>
        held + quarantined + this.#purges.size + copying.size > 0
          ? null
          : describeRam(this.store, this.namespaces, arena, this.#handed),
      );
    }
    await this.#ram[Symbol.asyncDispose]();
    await this.store[Symbol.asyncDispose]();
    crashPoint("stop.store-closed");
    await this.#cold?.close();
    crashPoint("stop.index-closed");
    await quiet;
    await this.#growing;
    this.#arenaWatch[Symbol.dispose]();
    this.lag[Symbol.dispose]();
    this.health[Symbol.dispose]();
    await this.#resources.queue[Symbol.asyncDispose]();
    try {
      this.#resources.region[Symbol.dispose]();
    } catch (error) {
      if (!(error instanceof HearthError)) throw error;
      this.#parts.logger.error(`closing the arena failed: ${messageOf(error)}`);
    }
  }
}

/** Tracks running tasks, so that their resources are released only after the tasks end. */
class TaskTracker {
  readonly #all = new Set<Promise<unknown>>();

  get size(): number {
    return this.#all.size;
  }

  run<T>(work: Promise<T>): Promise<T> {
    this.#all.add(work);
    return work.finally(() => this.#all.delete(work));
  }

  /** Waits until all current tasks have ended, at most `ms` milliseconds. */
  async over(clock: Clock, ms: number): Promise<void> {
    const over = new AbortController();
    const giveUp = sleep(clock, ms, over.signal).catch(() => undefined);
    await Promise.race([Promise.allSettled(this.#all), giveUp]);
    over.abort();
  }
}

/**
 * Returns a number that identifies this run of the agent. It is unique, and higher at each start
 * unless the wall clock goes backwards.
 */
function newIncarnation(clock: Clock, random: Random): bigint {
  const ms = BigInt(Math.max(1, Math.floor(clock.wallMs())));
  return (ms << 20n) | BigInt(random.u32() >>> 12);
}
