import type { Bus } from "../../bus/index.ts";
import { type Clock, isWorkerId, type Json, parseJson, type WorkerId } from "../../core/index.ts";
import type { Locator } from "./known-peers.ts";

/** Bus subject on which the router answers. */
export const LOCATE_SUBJECT = "kv-locate";
/** Maximum number of keys in one request; longer lists are split. */
export const LOCATE_KEYS_MAX = 1_024;
/** Maximum number of workers per block; the rest is discarded. */
export const LOCATE_WORKERS_MAX = 16;

export interface BusLocatorOptions {
  /** Owned by the caller. */
  readonly bus: Bus;
  readonly clock: Clock;
  readonly cluster: string;
  readonly self: WorkerId;
}

const ANSWER_BYTES_MAX = 256 * 1024;
const DEPTH_MAX = 8;
const WORKERS_MAX = 4_096;
/**
 * Without an answer, the router is not asked again for this time; callers with short deadlines skip
 * it, too.
 */
const QUIET_MS = 2_000;
/** Timeout of the router, even if callers give up earlier. */
const ROUTER_MS = 250;

type Found = readonly (readonly WorkerId[])[];

/**
 * Asks the router for blocks' locations over the bus, with a request to `kv-locate`:
 * `{"version":1,"cluster":..,"worker_id":..,"namespace":hex,"keys":[hex,..]}`. The answer
 * `{"workers":[name,..],"blocks":[[index,..],..]}` lists for each key the indices of the workers
 * that have the block, best first. An invalid answer counts as no answer. If a caller's deadline is
 * short, the router's answer is still awaited to measure its latency; callers whose deadline is
 * below the measured latency skip the router for a while.
 */
export class BusLocator implements Locator {
  readonly #options: BusLocatorOptions;
  #quietUntilMs = 0;
  /** Latency of the latest answer, and the time until which it is used. */
  #latencyMs = 0;
  #latencyUntilMs = 0;
  /** Send times of the requests without an answer, oldest first. */
  readonly #asked = new Set<{ readonly atMs: number }>();

  constructor(options: BusLocatorOptions) {
    this.#options = options;
  }

  async locate(
    namespaceKey: Uint8Array,
    keys: readonly Uint8Array[],
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<Found | null> {
    const { clock } = this.#options;
    const untilMs = clock.monotonicMs() + deadlineMs;
    const found: (readonly WorkerId[])[] = [];
    for (let from = 0; from < keys.length; from += LOCATE_KEYS_MAX) {
      const leftMs = untilMs - clock.monotonicMs();
      if (signal.aborted || !this.#mayAnswerWithin(leftMs)) return null;
      const part = keys.slice(from, from + LOCATE_KEYS_MAX);
      const answer = await this.#askWithin(leftMs, namespaceKey, part, signal);
      if (answer === null) return null;
      found.push(...answer);
    }
    return found;
  }

  #mayAnswerWithin(ms: number): boolean {
    const nowMs = this.#options.clock.monotonicMs();
    if (ms <= 0 || nowMs < this.#quietUntilMs) return false;
    if (nowMs < this.#latencyUntilMs && this.#latencyMs >= ms) return false;
    const [oldest] = this.#asked;
    return oldest === undefined || nowMs - oldest.atMs < ms;
  }

  async #askWithin(
    ms: number,
    namespaceKey: Uint8Array,
    keys: readonly Uint8Array[],
    signal: AbortSignal,
  ): Promise<Found | null> {
    const late = Promise.withResolvers<null>();
    using _late = this.#options.clock.after(ms, () => late.resolve(null));
    const asking = this.#ask(namespaceKey, keys, Math.max(ms, ROUTER_MS), signal);
    return await Promise.race([asking, late.promise]);
  }

  /** Never rejects. */
  async #ask(
    namespaceKey: Uint8Array,
    keys: readonly Uint8Array[],
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<Found | null> {
    const { bus, clock, cluster, self } = this.#options;
    const question = {
      version: 1,
      cluster,
      worker_id: self,
      namespace: namespaceKey.toHex(),
      keys: keys.map((key) => key.toHex()),
    };
    const asked = { atMs: clock.monotonicMs() };
    this.#asked.add(asked);
    try {
      const data = Buffer.from(JSON.stringify(question));
      const outcome = await bus.request(LOCATE_SUBJECT, data, { timeoutMs, signal });
      if (outcome.kind === "reply") {
        this.#latencyMs = clock.monotonicMs() - asked.atMs;
        this.#latencyUntilMs = clock.monotonicMs() + QUIET_MS;
        return readAnswer(outcome.message.data, keys.length, self);
      }
      this.#quietUntilMs = clock.monotonicMs() + QUIET_MS;
      return null;
    } catch {
      // A bus that cannot send requests counts as one without a router.
      if (!signal.aborted) this.#quietUntilMs = clock.monotonicMs() + QUIET_MS;
      return null;
    } finally {
      this.#asked.delete(asked);
    }
  }
}

/** Null: invalid. Leaves this host out. */
function readAnswer(data: Uint8Array, count: number, self: WorkerId): Found | null {
  if (data.length > ANSWER_BYTES_MAX) return null;
  const answer = parsed(data);
  const isObject = typeof answer === "object" && answer !== null && !Array.isArray(answer);
  if (!isObject) return null;
  const { workers, blocks } = answer;
  if (!Array.isArray(workers) || workers.length > WORKERS_MAX) return null;
  if (!Array.isArray(blocks) || blocks.length !== count) return null;
  if (!workers.every((name) => typeof name === "string" && isWorkerId(name))) return null;
  const names = workers as WorkerId[];
  const found: (readonly WorkerId[])[] = [];
  for (const indices of blocks) {
    if (!Array.isArray(indices)) return null;
    const held = indices.slice(0, LOCATE_WORKERS_MAX).map((index) => names[Number(index)]);
    if (!held.every((name) => name !== undefined)) return null;
    found.push([...new Set(held)].filter((name) => name !== self));
  }
  return found;
}

function parsed(data: Uint8Array): Json {
  try {
    return parseJson(new TextDecoder("utf-8", { fatal: true }).decode(data), DEPTH_MAX);
  } catch {
    return null;
  }
}
