import { type Brand, isWorkerId, type Json, type Random, stringifyJson } from "../../core/index.ts";
import {
  RESIDENCY_TIERS,
  type ResidencyDigest,
  type ResidencySource,
} from "../../observability/activity/index.ts";
import { type MessageFields, readFields } from "../message.ts";
import type { BusyThresholds } from "../route.ts";
import type { OwnedSum } from "./shared-load.ts";

/** Message in which a router periodically announces its state to the other routers (replicas). */
export interface Announcement {
  /**
   * `hello`: the router has just started or reconnected, and the others should announce themselves.
   * `bye`: the router is shutting down.
   */
  readonly kind: "here" | "hello" | "bye";
  readonly router: RouterId;
  readonly everyMs: number;
  /**
   * Count and checksum of the sender's active requests. All events of these requests were sent
   * before the announcement.
   */
  readonly requests: OwnedSum;
  /**
   * Index state of some of the workers that the sender follows. Later announcements contain the
   * others.
   */
  readonly snapshots: readonly SeenSnapshot[];
  /** Busy thresholds that were set at run time. */
  readonly thresholds: readonly SetThresholds[];
}

export interface SeenSnapshot {
  readonly source: ResidencySource;
  readonly sequence: number;
  readonly digests: readonly ResidencyDigest[];
}

/**
 * Busy thresholds of one model. The entry set last replaces earlier ones; at equal times, the entry
 * with the greater router id.
 */
export interface SetThresholds {
  readonly model: string;
  readonly thresholds: BusyThresholds;
  readonly wallMs: number;
  readonly router: RouterId;
}

export const PICTURES_MAX = 512;
export const THRESHOLDS_MAX = 256;
const BYTES_MAX = 512 * 1024;
const VERSION = 1;
const KINDS = ["here", "hello", "bye"] as const;
const EVERY_MS_MIN = 20;
const EVERY_MS_MAX = 300_000;
const MODEL_CHARACTERS_MAX = 512;
const THRESHOLD_MAX = 2 ** 40;
const RANK_MAX = 65_535;

export function encodeAnnouncement(announcement: Announcement, cluster: string): Uint8Array {
  const { kind, router, everyMs, requests, snapshots, thresholds } = announcement;
  const message = {
    version: VERSION,
    kind,
    cluster,
    router,
    every_ms: everyMs,
    requests: [requests.requests, requests.mix],
    pictures: snapshots.map(({ source, sequence, digests }) => [
      ...[source.worker, source.rank, source.incarnation, sequence],
      ...digests.flatMap(({ blocks, mix }) => [blocks, mix]),
    ]),
    thresholds: thresholds.map(({ model, thresholds: set, wallMs, router: by }) => ({
      model,
      active_decode_blocks_threshold: set.activeDecodeBlocksThreshold,
      active_prefill_tokens_threshold: set.activePrefillTokensThreshold,
      active_prefill_tokens_threshold_frac: set.activePrefillTokensThresholdFrac ?? null,
      set_at: wallMs,
      router: by,
    })),
  };
  return Buffer.from(stringifyJson(message));
}

/** Thrown when a received message is invalid, and caught in this file. */
class Refused extends Error {}

/**
 * Parses a message from an untrusted sender. Returns null if it is malformed or of another cluster.
 */
export function readAnnouncement(data: Uint8Array, cluster: string): Announcement | null {
  const fields = readFields(data, BYTES_MAX);
  try {
    return fields === null ? null : announcementIn(fields, cluster);
  } catch (thrown) {
    if (thrown instanceof Refused) return null;
    throw thrown;
  }
}

function announcementIn(fields: MessageFields, cluster: string): Announcement {
  const { version, router, every_ms: everyMs, requests, pictures, thresholds } = fields;
  const kind = KINDS.find((one) => one === fields.kind);
  must(version === VERSION && kind !== undefined && fields.cluster === cluster);
  must(isRouterId(router) && isWhole(everyMs, EVERY_MS_MIN, EVERY_MS_MAX));
  must(Array.isArray(requests) && requests.length === 2);
  const [count, mix] = requests;
  must(isWhole(count, 0, Number.MAX_SAFE_INTEGER));
  return {
    ...{ kind, router, everyMs, requests: { requests: count, mix: u64Of(mix) } },
    snapshots: listOf(pictures, PICTURES_MAX).map(snapshotIn),
    thresholds: listOf(thresholds, THRESHOLDS_MAX).map(thresholdsIn),
  };
}

function snapshotIn(value: Json): SeenSnapshot {
  must(Array.isArray(value) && value.length === 4 + 2 * RESIDENCY_TIERS.length);
  const [worker, rank, incarnation, sequence, ...sums] = value;
  must(typeof worker === "string" && isWorkerId(worker) && isWhole(rank, 0, RANK_MAX));
  must(isWhole(sequence, 0, Number.MAX_SAFE_INTEGER));
  const digests = RESIDENCY_TIERS.map((_tier, at) => {
    const blocks = sums[at * 2];
    must(isWhole(blocks, 0, Number.MAX_SAFE_INTEGER));
    return { blocks, mix: u64Of(sums[at * 2 + 1]) };
  });
  return { source: { worker, rank, incarnation: u64Of(incarnation) }, sequence, digests };
}

function thresholdsIn(value: Json): SetThresholds {
  const fields = objectOf(value);
  const { model, set_at: wallMs, router } = fields;
  must(typeof model === "string" && model.length <= MODEL_CHARACTERS_MAX);
  must(isWhole(wallMs, 0, Number.MAX_SAFE_INTEGER) && isRouterId(router));
  const frac = numberOf(fields.active_prefill_tokens_threshold_frac ?? null);
  const thresholds = {
    activeDecodeBlocksThreshold: numberOf(fields.active_decode_blocks_threshold),
    activePrefillTokensThreshold: numberOf(fields.active_prefill_tokens_threshold),
    ...(frac === null ? {} : { activePrefillTokensThresholdFrac: frac }),
  };
  return { model, thresholds, wallMs, router };
}

function numberOf(value: Json | undefined): number | null {
  const isIn = typeof value === "number" && value >= 0 && value <= THRESHOLD_MAX;
  must(value === null || (isIn && !Object.is(value, -0)));
  return value;
}

function u64Of(value: Json | undefined): bigint {
  const isNumber = typeof value === "bigint" || (typeof value === "number" && value >= 0);
  must(isNumber && (typeof value === "bigint" || Number.isSafeInteger(value)));
  const number = BigInt(value);
  must(number >= 0n && number < 1n << 64n);
  return number;
}

function listOf(value: Json | undefined, max: number): Json[] {
  must(Array.isArray(value) && value.length <= max);
  return value;
}

function objectOf(value: Json | undefined): MessageFields {
  must(typeof value === "object" && value !== null && !Array.isArray(value));
  return value as MessageFields;
}

function isWhole(value: Json | undefined, min: number, max: number): value is number {
  const isNumber = Number.isSafeInteger(value) && !Object.is(value, -0);
  return isNumber && Number(value) >= min && Number(value) <= max;
}

function must(holds: boolean): asserts holds {
  if (!holds) throw new Refused();
}

/**
 * Id of one run of a router: a u64 in decimal digits. A router ignores messages with its own id.
 */
export type RouterId = Brand<string, "RouterId">;

const ROUTER_ID = /^(?:0|[1-9][0-9]{0,19})$/;

/** Returns a random router id of at most 53 bits, like the ids of Dynamo's publishers. */
export function newRouterId(random: Random): RouterId {
  const high = BigInt(random.u32() >>> 11);
  return String((high << 32n) | BigInt(random.u32()) | 1n) as RouterId;
}

export function isRouterId(text: unknown): text is RouterId {
  return typeof text === "string" && ROUTER_ID.test(text);
}

/**
 * Initial number of differing announcements to tolerate, because load events may still be in
 * flight.
 */
export const DIFFERS_MIN = 2;

/** State of another router, from its latest messages. */
export class Replica {
  readonly router: RouterId;
  everyMs: number;
  heardMs: number;
  /** True until the first announcement arrives. Load events may arrive earlier. */
  isNew = true;
  /** Number of consecutive announcements whose request checksums differed from the local ones. */
  differs = 0;
  /**
   * Number of consecutive differing announcements at which this router fetches the other's request
   * list. Doubles after each fetch; reset when the checksums match.
   */
  tolerance = DIFFERS_MIN;
  isAsked = false;
  readonly snapshots = new Map<string, SeenSnapshot>();

  constructor(router: RouterId, everyMs: number, heardMs: number) {
    [this.router, this.everyMs, this.heardMs] = [router, everyMs, heardMs];
  }
}

/** Maximum number of other routers. Messages of further routers are ignored. */
const REPLICAS_MAX = 64;
const KNOWN_SNAPSHOTS_MAX = 65_536;

export class ReplicaTable {
  readonly #members = new Map<RouterId, Replica>();

  get all(): readonly Replica[] {
    return [...this.#members.values()];
  }

  get(router: RouterId): Replica | null {
    return this.#members.get(router) ?? null;
  }

  /**
   * Records that a message of `router` arrived. Returns null if it is new and the limit of routers
   * is reached. `everyMs`: assumed announcement interval until the router announces its own.
   */
  heard(router: RouterId, everyMs: number, nowMs: number): Replica | null {
    const known = this.#members.get(router);
    if (known !== undefined) {
      known.heardMs = nowMs;
      return known;
    }
    if (this.#members.size >= REPLICAS_MAX) return null;
    const member = new Replica(router, everyMs, nowMs);
    this.#members.set(router, member);
    return member;
  }

  delete(router: RouterId): void {
    this.#members.delete(router);
  }

  seen({ snapshots }: Replica, seen: readonly SeenSnapshot[]): void {
    for (const one of seen) {
      if (snapshots.size < KNOWN_SNAPSHOTS_MAX) snapshots.set(nameOf(one.source), one);
    }
  }

  /**
   * Returns the router that announced the latest state of this run of a source. Null if none did.
   */
  holderOf(source: ResidencySource): RouterId | null {
    let best: { router: RouterId; sequence: number } | null = null;
    for (const { router, snapshots } of this.#members.values()) {
      const seen = snapshots.get(nameOf(source));
      if (seen?.source.incarnation !== source.incarnation) continue;
      if (best === null || seen.sequence > best.sequence) best = { router, ...seen };
    }
    return best?.router ?? null;
  }
}

function nameOf({ worker, rank }: ResidencySource): string {
  return `${worker}/${rank}`;
}

/** Latest busy thresholds of each model, set at run time at any router. */
export class ThresholdTable {
  readonly #latest = new Map<string, SetThresholds>();

  get all(): readonly SetThresholds[] {
    return [...this.#latest.values()];
  }

  of(model: string): BusyThresholds | null {
    return this.#latest.get(model)?.thresholds ?? null;
  }

  /** Stores the entry and returns true if it is newer than the known one. */
  take(set: SetThresholds): boolean {
    const known = this.#latest.get(set.model);
    if (known === undefined && this.#latest.size >= THRESHOLDS_MAX) return false;
    const isLater =
      known === undefined ||
      set.wallMs > known.wallMs ||
      (set.wallMs === known.wallMs && set.router > known.router);
    if (isLater) this.#latest.set(set.model, set);
    return isLater;
  }
}
