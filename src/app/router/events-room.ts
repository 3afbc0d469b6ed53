import { type Bus, type BusLog, openBus } from "../../bus/index.ts";
import type { RouterConfig } from "../../config/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import type { Health, Logger, RouterSnapshot } from "../../observability/index.ts";
import {
  type ActiveLoad,
  askedAt,
  BusArchive,
  BusListening,
  INTAKE_DEFAULTS,
  LocateService,
  type PrefixIndex,
  ResidencyIntake,
  type WorkerTable,
} from "../../router/index.ts";
import { natsFilesOf } from "../nats-files.ts";

export interface EventsRoomParts {
  readonly config: RouterConfig;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
  /** Instead of the one that the configuration names; not closed here. */
  readonly bus?: Bus;
  isConfigured(worker: WorkerId, rank: number): boolean;
}

/** How long messages that wait may take to go out at the end. */
const CLOSE_MS = 1_000;

/** Where what workers hold comes in over NATS, from its opening to its end. */
export class EventsRoom implements AsyncDisposable {
  readonly bus: Bus;
  readonly intake: ResidencyIntake | null;
  readonly #ownsBus: boolean;
  readonly #ends: readonly Disposable[];

  private constructor(parts: EventsRoomParts, bus: Bus) {
    const { config, clock, random, logger, health, table, index, load } = parts;
    const { cluster, workersMax, staleBeats, goneBeats } = config.events;
    const log: BusLog = (level, message, fields) => logger.log(level, message, fields);
    this.bus = bus;
    this.#ownsBus = parts.bus === undefined;
    const ends: Disposable[] = [bus.onStatus(() => tellHealth(health, bus))];
    tellHealth(health, bus);
    this.intake = null;
    if (config.router.kvEvents) {
      const settings = { ...INTAKE_DEFAULTS, targetsMax: workersMax, staleBeats, goneBeats };
      const { answerMs, pictureBlocksMax } = settings;
      const archive = new BusArchive({
        ...{ bus, answerMs, pictureBlocksMax },
        subjectOf: askedAt(cluster),
      });
      const intake = new ResidencyIntake({
        ...{ clock, random, log, index, table, archive, settings },
        isHearing: () => bus.state.status === "connected",
        isConfigured: parts.isConfigured,
      });
      this.intake = intake;
      ends.push(new BusListening(bus, cluster, intake, () => intake.counts.refused++));
      ends.push(new LocateService({ bus, clock, cluster, index, table, load }));
    }
    this.#ends = ends;
  }

  /** Returns at once, whether or not there is a broker; null where there is none to speak to. */
  static open(parts: EventsRoomParts): EventsRoom | null {
    if (parts.bus !== undefined) return new EventsRoom(parts, parts.bus);
    const { config, clock, random, logger } = parts;
    const { nats, router } = config;
    if (nats.url === null) return null;
    const bus = openBus({
      url: nats.url,
      name: `hearth router ${router.id}`,
      ...natsFilesOf(nats),
      ...{ clock, random },
      log: (level, message, fields) => logger.log(level, message, fields),
      limits: { queueMessages: nats.queueMessages, queueBytes: nats.queueBytes },
    });
    return new EventsRoom(parts, bus);
  }

  /** Whether all that was heard of so far has told what it holds. */
  get isComplete(): boolean {
    if (this.bus.state.status !== "connected") return false;
    return this.intake === null || this.intake.stats().stalled === 0;
  }

  snapshot(): RouterSnapshot["events"] {
    if (this.intake === null) return null;
    const stats = this.intake.stats();
    return {
      kinds: {
        batch: stats.batches,
        change: stats.changes,
        heartbeat: stats.heartbeats,
        duplicate: stats.duplicates,
        early: stats.early,
        stale: stats.stale,
        unannounced: stats.unannounced,
        refused: stats.refused,
        overfull: stats.overfull,
        pending_dropped: stats.pendingDropped,
      },
      resyncs: {
        gap: stats.gaps,
        incarnation: stats.incarnations,
        range: stats.ranges,
        picture: stats.pictures,
        picture_failed: stats.picturesFailed,
        mismatch: stats.mismatches,
        doubt: stats.doubts,
      },
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const end of this.#ends) end[Symbol.dispose]();
    await this.intake?.[Symbol.asyncDispose]();
    if (this.#ownsBus) await this.bus.close(CLOSE_MS);
  }
}

function tellHealth(health: Health, { state }: Bus): void {
  const { status, why } = state;
  if (status === "connected" || status === "closed") health.clear("ROUTER_NATS");
  else health.raise("ROUTER_NATS", why ?? "not connected yet");
}
