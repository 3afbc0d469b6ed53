import { isIP } from "node:net";
import { isWorkerId, type Json, parseJson, type WorkerId } from "../../core/index.ts";
import { RDMA_DEVICE, RDMA_DEVICES_MAX } from "../hardware.ts";
import type { HardwareReport } from "../messages.ts";
import { type Endpoint, TRANSPORTS, type TransportName } from "../transport.ts";

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
