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
import type { KnownMembers } from "./known-peers.ts";

/** What a host says of itself to all others. */
export interface Announcement {
  /** `hello`: it is new here and wants to hear of the others at once. `bye`: it ends. */
  readonly kind: "here" | "hello" | "bye";
  readonly cluster: string;
  readonly worker: WorkerId;
  readonly incarnation: bigint;
  /** How often it says so. */
  readonly everyMs: number;
  readonly endpoints: Readonly<Partial<Record<TransportName, Endpoint>>>;
  readonly hardware: HardwareReport;
  /** Keys in hex; null: too many to name. */
  readonly namespaces: readonly string[] | null;
}

export type ReadAnnouncement =
  | { readonly ok: true; readonly announcement: Announcement }
  | { readonly ok: false; readonly why: string };

export const ANNOUNCEMENT_BYTES_MAX = 32 * 1024;
/** A host with more of them says that any may be there. */
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

/** Where hosts of a cluster announce themselves. */
export function membersSubject(cluster: string): string {
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

/** Why a message is refused; thrown and caught in this file alone. */
class Refused extends Error {}

/** Reads what anybody may have sent. Members that are not known are left out. */
export function readAnnouncement(data: Uint8Array): ReadAnnouncement {
  if (data.length > ANNOUNCEMENT_BYTES_MAX) return { ok: false, why: "it is too long" };
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return { ok: true, announcement: announcementIn(objectOf(parseJson(text, DEPTH_MAX))) };
  } catch (thrown) {
    if (thrown instanceof Refused) return { ok: false, why: thrown.message };
    return { ok: false, why: "it is no JSON" };
  }
}

function announcementIn(fields: Fields): Announcement {
  const { version, cluster, worker_id: worker, every_ms: everyMs } = fields;
  must(isIn(version, 1, Number.MAX_SAFE_INTEGER), "its version is none");
  const kind = KINDS.find((one) => one === fields.kind);
  must(kind !== undefined, "its kind is not known");
  must(typeof cluster === "string" && cluster.length <= 64, "its cluster is none");
  must(typeof worker === "string" && isWorkerId(worker), "its worker_id is none");
  must(isIn(everyMs, EVERY_MS_MIN, EVERY_MS_MAX), "its every_ms is out of range");
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
  must(typeof value === "string" && U64.test(value), "its incarnation is no number");
  const incarnation = BigInt(value);
  must(incarnation > 0n && incarnation < 1n << 64n, "its incarnation is out of range");
  return incarnation;
}

function endpointsOf(fields: Fields): Announcement["endpoints"] {
  const endpoints: Partial<Record<TransportName, Endpoint>> = {};
  for (const name of TRANSPORTS) {
    const value = fields[name];
    if (value === undefined) continue;
    const { host, port } = objectOf(value);
    must(typeof host === "string" && isHost(host), "an endpoint's host is none");
    must(isIn(port, 1, 65_535), "an endpoint's port is none");
    endpoints[name] = { host, port };
  }
  return endpoints;
}

function isHost(host: string): boolean {
  return isIP(host) !== 0 || (HOST.test(host) && !/^[0-9.]+$/.test(host));
}

function hardwareOf({ rdma_devices: devices, cores, aes }: Fields): HardwareReport {
  must(Array.isArray(devices) && devices.length <= RDMA_DEVICES_MAX, "its rdma_devices are none");
  const names = devices.filter((name) => typeof name === "string");
  const areNames = names.length === devices.length && names.every((name) => RDMA_DEVICE.test(name));
  must(areNames, "an RDMA device has no name");
  must(isIn(cores, 1, CORES_MAX), "its cores are out of range");
  must(typeof aes === "boolean", "its aes is neither true nor false");
  return { hasRdmaNic: names.length > 0, rdmaDevices: names, cores, hasAes: aes };
}

function namespacesOf(value: Json | undefined): readonly string[] | null {
  if (value === null) return null;
  const isShort = Array.isArray(value) && value.length <= ANNOUNCED_NAMESPACES_MAX;
  must(isShort, "its namespaces are no list, or too many");
  const keys = value.filter((key) => typeof key === "string" && NAMESPACE.test(key)) as string[];
  must(keys.length === value.length, "a namespace is no key");
  return keys;
}

function objectOf(value: Json | undefined): Fields {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  must(isObject, "a part of it is missing");
  return value as Fields;
}

function isIn(value: Json | undefined, min: number, max: number): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= min && value <= max;
}

function must(holds: boolean, why: string): asserts holds {
  if (!holds) throw new Refused(why);
}

/** Names told to peers, and accepted from them. */
const RDMA_DEVICES_MAX = 16;
const RDMA_DEVICE = /^[A-Za-z0-9_.-]{1,64}$/;

/**
 * What this host tells its peers of itself, with the RDMA devices over which blocks can go. Never
 * throws: what cannot be read is not there.
 */
export function readHardware(
  devices: readonly string[],
  cpuInfo = "/proc/cpuinfo",
): HardwareReport {
  const flags = cpuFlags(orElse(() => readFileSync(cpuInfo, "utf8"), ""));
  const fixed = { cores: availableParallelism(), hasAes: flags?.includes("aes") ?? false };
  return withDevices({ ...fixed, hasRdmaNic: false, rdmaDevices: [] }, devices);
}

/** The same host when these devices can be used. A device that merely is there is none of them. */
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
  /** Not closed here. */
  readonly bus: Bus;
  readonly members: KnownMembers;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  /** This host as it is now; null says nothing, and listens. */
  readonly self: () => Omit<Announcement, "kind"> | null;
  readonly cluster: string;
  readonly everyMs: number;
}

/** For a thousand hosts at their shortest interval, twice. */
const MESSAGES_PER_SECOND = 4_096;
/** Hosts answer a new one within so long, not all at once. */
const ANSWER_MS = 1_000;
const SECOND_MS = 1_000;

/** What became of others' messages since the start. */
export interface AnnouncerStats {
  readonly heard: number;
  readonly refused: number;
  /** More than anybody needs: not even read. */
  readonly dropped: number;
}

/**
 * Says over the bus that this host is there, and hears of the others. What others say is a hint:
 * who they are is proven by the certificate when they are spoken to.
 */
export class Announcer implements Disposable {
  readonly #options: AnnouncerOptions;
  readonly #subject: string;
  readonly #subscription: Subscription;
  readonly #watches: readonly Disposable[];
  #answer: Disposable | null = null;
  /** This host as it was said last. */
  #said: Omit<Announcement, "kind"> | null = null;
  #left = MESSAGES_PER_SECOND;
  /** Another process under this worker's name, which was warned of. */
  #namesake: bigint | null = null;
  #heard = 0;
  #refused = 0;
  #dropped = 0;

  constructor(options: AnnouncerOptions) {
    const { bus, clock, everyMs } = options;
    this.#options = options;
    this.#subject = membersSubject(options.cluster);
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

  /** Says goodbye. */
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
    // What waited for a connection would be wrong by then.
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
      this.#options.log("debug", "an announcement was refused", { why: read.why });
      return;
    }
    const { announcement } = read;
    if (announcement.cluster !== this.#options.cluster) return;
    // Not asked for anew: that costs what a host has of namespaces, for every message.
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
    const text = "another host announces itself under this worker's name: give it its own node.id";
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
      this.#options.log("warn", "announcements of peers come too fast", { dropped: this.#dropped });
    }
    this.#left = MESSAGES_PER_SECOND;
  }
}
