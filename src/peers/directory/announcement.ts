import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { availableParallelism } from "node:os";
import type { Bus, BusMessage, Subscription } from "../../bus/index.ts";
import {
  type Clock,
  isWorkerId,
  type Json,
  parseJson,
  type Random,
  randomBelow,
  type WorkerId,
} from "../../core/index.ts";
import { cpuFlags } from "../../native/index.ts";
import type { HardwareReport } from "../messages.ts";
import { type Endpoint, TRANSPORTS, type TransportLog, type TransportName } from "../transport.ts";
import type { KnownPeers } from "./known-peers.ts";

/** A message with which a host makes itself known to the other hosts of its cluster. */
export interface Announcement {
  /**
   * `here`: sent periodically. `hello`: the host is new and requests announcements of the other
   * hosts. `bye`: the host is leaving.
   */
  readonly kind: "here" | "hello" | "bye";
  readonly cluster: string;
  readonly worker: WorkerId;
  readonly incarnation: bigint;
  /** Milliseconds between two announcements of the host. */
  readonly everyMs: number;
  readonly endpoints: Readonly<Partial<Record<TransportName, Endpoint>>>;
  readonly hardware: HardwareReport;
  /**
   * Keys, in hex, of the namespaces of which the host has blocks. Null if there are too many to
   * list: the host may have blocks of any namespace.
   */
  readonly namespaces: readonly string[] | null;
}

export type ReadAnnouncement =
  | { readonly ok: true; readonly announcement: Announcement }
  | { readonly ok: false; readonly why: string };

export const ANNOUNCEMENT_BYTES_MAX = 32 * 1024;
/** Maximum number of namespaces in an announcement. A host with more announces null. */
export const ANNOUNCED_NAMESPACES_MAX = 256;
const VERSION = 1;
const KINDS = ["here", "hello", "bye"] as const;
const EVERY_MS_MIN = 500;
const EVERY_MS_MAX = 300_000;
const CORES_MAX = 65_536;
const DEPTH_MAX = 8;
const NAMESPACE = /^[0-9a-f]{64}$/;
const HOST = /^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$/;
const U64 = /^(?:0|[1-9][0-9]{0,19})$/;

/** Returns the message-bus subject on which the hosts of a cluster announce themselves. */
export function announcementSubject(cluster: string): string {
  return `kv-peers-${cluster.replaceAll(".", "_")}`;
}

export function encodeAnnouncement(announcement: Announcement): Uint8Array {
  const { kind, cluster, worker, incarnation, everyMs, endpoints, hardware } = announcement;
  const { namespaces } = announcement;
  const isMany = namespaces === null || namespaces.length > ANNOUNCED_NAMESPACES_MAX;
  const { rdmaDevices, cores, hasAes } = hardware;
  const message = {
    version: VERSION,
    kind,
    cluster,
    worker_id: worker,
    incarnation: incarnation.toString(),
    every_ms: everyMs,
    endpoints,
    hardware: { rdma_devices: rdmaDevices, cores, aes: hasAes },
    namespaces: isMany ? null : namespaces,
  };
  return Buffer.from(JSON.stringify(message));
}

type Fields = Readonly<Record<string, Json | undefined>>;

/** Signals an invalid announcement, with the reason. Thrown and caught in this file only. */
class Refused extends Error {}

/** Decodes an announcement from an untrusted sender. Ignores unknown members of the JSON object. */
export function readAnnouncement(data: Uint8Array): ReadAnnouncement {
  if (data.length > ANNOUNCEMENT_BYTES_MAX) return { ok: false, why: "message too long" };
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return { ok: true, announcement: announcementIn(objectOf(parseJson(text, DEPTH_MAX))) };
  } catch (thrown) {
    if (thrown instanceof Refused) return { ok: false, why: thrown.message };
    return { ok: false, why: "invalid JSON" };
  }
}

function announcementIn(fields: Fields): Announcement {
  const { version, cluster, worker_id: worker, every_ms: everyMs } = fields;
  must(isIn(version, 1, Number.MAX_SAFE_INTEGER), "unsupported version");
  const kind = KINDS.find((one) => one === fields.kind);
  must(kind !== undefined, "unknown kind");
  must(typeof cluster === "string" && cluster.length <= 64, "invalid cluster");
  must(typeof worker === "string" && isWorkerId(worker), "invalid worker_id");
  must(isIn(everyMs, EVERY_MS_MIN, EVERY_MS_MAX), "every_ms out of range");
  return {
    kind,
    cluster,
    worker,
    incarnation: incarnationOf(fields.incarnation),
    everyMs,
    endpoints: endpointsOf(objectOf(fields.endpoints)),
    hardware: hardwareOf(objectOf(fields.hardware)),
    namespaces: namespacesOf(fields.namespaces),
  };
}

function incarnationOf(value: Json | undefined): bigint {
  must(typeof value === "string" && U64.test(value), "incarnation is not a number");
  const incarnation = BigInt(value);
  must(incarnation > 0n && incarnation < 1n << 64n, "incarnation out of range");
  return incarnation;
}

function endpointsOf(fields: Fields): Announcement["endpoints"] {
  const endpoints: Partial<Record<TransportName, Endpoint>> = {};
  for (const name of TRANSPORTS) {
    const value = fields[name];
    if (value === undefined) continue;
    const { host, port } = objectOf(value);
    must(typeof host === "string" && isHost(host), "invalid endpoint host");
    must(isIn(port, 1, 65_535), "invalid endpoint port");
    endpoints[name] = { host, port };
  }
  return endpoints;
}

function isHost(host: string): boolean {
  return isIP(host) !== 0 || (HOST.test(host) && !/^[0-9.]+$/.test(host));
}

function hardwareOf({ rdma_devices: devices, cores, aes }: Fields): HardwareReport {
  must(Array.isArray(devices) && devices.length <= RDMA_DEVICES_MAX, "invalid rdma_devices");
  const names = devices.filter((name) => typeof name === "string");
  const areNames = names.length === devices.length && names.every((name) => RDMA_DEVICE.test(name));
  must(areNames, "invalid RDMA device name");
  must(isIn(cores, 1, CORES_MAX), "cores out of range");
  must(typeof aes === "boolean", "aes is not a boolean");
  return { hasRdmaNic: names.length > 0, rdmaDevices: names, cores, hasAes: aes };
}

function namespacesOf(value: Json | undefined): readonly string[] | null {
  if (value === null) return null;
  const isShort = Array.isArray(value) && value.length <= ANNOUNCED_NAMESPACES_MAX;
  must(isShort, "namespaces is not a list, or too long");
  const keys = value.filter((key) => typeof key === "string" && NAMESPACE.test(key)) as string[];
  must(keys.length === value.length, "invalid namespace key");
  return keys;
}

function objectOf(value: Json | undefined): Fields {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  must(isObject, "missing member");
  return value as Fields;
}

function isIn(value: Json | undefined, min: number, max: number): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= min && value <= max;
}

function must(holds: boolean, why: string): asserts holds {
  if (!holds) throw new Refused(why);
}

/** Maximum number of RDMA device names in this host's report, and in a received one. */
const RDMA_DEVICES_MAX = 16;
const RDMA_DEVICE = /^[A-Za-z0-9_.-]{1,64}$/;

/**
 * Reports this host's hardware, with the RDMA devices that can carry blocks. Never throws; hardware
 * that cannot be read counts as absent.
 */
export function readHardware(
  devices: readonly string[],
  cpuInfo = "/proc/cpuinfo",
): HardwareReport {
  const flags = cpuFlags(orElse(() => readFileSync(cpuInfo, "utf8"), ""));
  const fixed = { cores: availableParallelism(), hasAes: flags?.includes("aes") ?? false };
  return withDevices({ ...fixed, hasRdmaNic: false, rdmaDevices: [] }, devices);
}

/** Returns the report with `devices` as its RDMA devices. Only pass devices that can be used. */
export function withDevices(report: HardwareReport, devices: readonly string[]): HardwareReport {
  const named = devices.filter((name) => RDMA_DEVICE.test(name)).sort();
  const rdmaDevices = named.slice(0, RDMA_DEVICES_MAX);
  return { ...report, hasRdmaNic: rdmaDevices.length > 0, rdmaDevices };
}

function orElse<Value>(read: () => Value, otherwise: Value): Value {
  try {
    return read();
  } catch {
    return otherwise;
  }
}

export interface AnnouncerOptions {
  /** Message bus. The caller closes it. */
  readonly bus: Bus;
  readonly members: KnownPeers;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  /** Returns this host's current announcement. Null if this host only listens. */
  readonly self: () => Omit<Announcement, "kind"> | null;
  readonly cluster: string;
  readonly everyMs: number;
}

/**
 * Maximum number of announcements processed per second: twice the rate of 1,000 hosts at their
 * shortest interval.
 */
const MESSAGES_PER_SECOND = 4_096;
/**
 * Hosts reply to a `hello` after a random delay of at most this many milliseconds, so that they do
 * not all reply at once.
 */
const ANSWER_MS = 1_000;
const SECOND_MS = 1_000;

/** Numbers of announcements received since the start. */
export interface AnnouncerStats {
  readonly heard: number;
  readonly refused: number;
  /** Announcements above the rate limit, which were discarded without being decoded. */
  readonly dropped: number;
}

/**
 * Announces this host over the message bus and receives the other hosts' announcements.
 * Announcements are not trusted: a peer's certificate proves its identity when a connection is
 * made.
 */
export class Announcer implements Disposable {
  readonly #options: AnnouncerOptions;
  readonly #subject: string;
  readonly #subscription: Subscription;
  readonly #watches: readonly Disposable[];
  #answer: Disposable | null = null;
  /** Announcement that this host published last. */
  #said: Omit<Announcement, "kind"> | null = null;
  #left = MESSAGES_PER_SECOND;
  /** Incarnation of another process that announced this host's worker name, if that was logged. */
  #namesake: bigint | null = null;
  #heard = 0;
  #refused = 0;
  #dropped = 0;

  constructor(options: AnnouncerOptions) {
    const { bus, clock, everyMs } = options;
    this.#options = options;
    this.#subject = announcementSubject(options.cluster);
    this.#subscription = bus.subscribe(this.#subject, (message) => this.#take(message));
    this.#watches = [
      clock.every(everyMs, () => this.#say("here")),
      clock.every(SECOND_MS, () => this.#count()),
      bus.onStatus(({ status }) => {
        if (status === "connected") this.#say("hello");
      }),
    ];
    this.#say("hello");
  }

  stats(): AnnouncerStats {
    return { heard: this.#heard, refused: this.#refused, dropped: this.#dropped };
  }

  /** Stops listening and announces that this host is leaving. */
  [Symbol.dispose](): void {
    for (const watch of this.#watches) watch[Symbol.dispose]();
    this.#answer?.[Symbol.dispose]();
    this.#subscription.unsubscribe();
    this.#say("bye");
  }

  #say(kind: Announcement["kind"]): void {
    const { bus } = this.#options;
    const self = this.#options.self();
    this.#said = self;
    // The bus would queue the message until it reconnects, and the message would then be outdated.
    if (self === null || bus.state.status !== "connected") return;
    bus.publish(this.#subject, encodeAnnouncement({ ...self, kind }), { isSpare: true });
  }

  #take({ data }: BusMessage): void {
    if (this.#left === 0) {
      this.#dropped++;
      return;
    }
    this.#left--;
    const read = readAnnouncement(data);
    if (!read.ok) {
      this.#refused++;
      this.#options.log("debug", "announcement refused", { why: read.why });
      return;
    }
    const { announcement } = read;
    if (announcement.cluster !== this.#options.cluster) return;
    // Uses the published announcement: creating one for each received message would list all
    // namespaces each time.
    const self = this.#said;
    if (self?.worker === announcement.worker) this.#ownName(self, announcement);
    else this.#listen(announcement);
  }

  #listen(announcement: Announcement): void {
    this.#heard++;
    const { members } = this.#options;
    if (announcement.kind === "bye") members.left(announcement);
    else members.heard(announcement);
    if (announcement.kind === "hello") this.#answerSoon();
  }

  #ownName(self: Omit<Announcement, "kind">, { kind, incarnation }: Announcement): void {
    const isOurs = self.incarnation === incarnation || kind === "bye";
    if (isOurs || this.#namesake === incarnation) return;
    this.#namesake = incarnation;
    const text = "another host announces this host's worker name: give each host its own node.id";
    this.#options.log("warn", text, { worker: self.worker });
  }

  #answerSoon(): void {
    const { clock, random } = this.#options;
    this.#answer ??= clock.after(randomBelow(random, ANSWER_MS), () => {
      this.#answer = null;
      this.#say("here");
    });
  }

  #count(): void {
    if (this.#left === 0) {
      this.#options.log("warn", "announcement rate limit reached, dropping messages", {
        dropped: this.#dropped,
      });
    }
    this.#left = MESSAGES_PER_SECOND;
  }
}
