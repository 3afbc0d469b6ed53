import {
  type Bus,
  type BusLog,
  type BusState,
  type ConsumptionState,
  openBus,
  Presence,
} from "../bus/index.ts";
import type { Config } from "../config/index.ts";
import { type ControlSubscriber, createControlSubscriber } from "../control/index.ts";
import type { Clock, Random } from "../core/index.ts";
import type { ControlSnapshot, Health, Logger } from "../observability/index.ts";
import type { ControlRoom } from "./control-room.ts";
import { natsFilesOf } from "./nats-files.ts";

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
const WATCH_MS = 1_000;
/** Issuer of commands over NATS that name none. */
const ISSUER = "nats";

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
      issuer: ISSUER,
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
