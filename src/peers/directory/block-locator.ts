import type { Bus } from "../../bus/index.ts";
import { type Clock, isWorkerId, type Json, parseJson, type WorkerId } from "../../core/index.ts";
import type { Locator } from "./known-peers.ts";

/** Message-bus subject on which the router answers requests for block locations. */
export const LOCATE_SUBJECT = "kv-locate";
/** Maximum number of block keys in one request. Longer lists are split. */
export const LOCATE_KEYS_MAX = 1_024;
/** Maximum number of workers accepted per block. Further workers in a reply are ignored. */
export const LOCATE_WORKERS_MAX = 16;

export interface BusLocatorOptions {
  /** Message bus. The caller closes it. */
  readonly bus: Bus;
  readonly clock: Clock;
  readonly cluster: string;
  readonly self: WorkerId;
}

const ANSWER_BYTES_MAX = 256 * 1024;
const DEPTH_MAX = 8;
const WORKERS_MAX = 4_096;
/**
 * After a request without a reply, the router is not asked for this many milliseconds. Callers with
 * short deadlines also skip a slow router for this time.
 */
const QUIET_MS = 2_000;
/** Milliseconds to wait for the router's reply, even if the caller's deadline is shorter. */
const ROUTER_MS = 250;

type Found = readonly (readonly WorkerId[])[];

/**
 * Asks the router over the message bus which workers have given blocks. Request to `kv-locate`:
 * `{"version":1,"cluster":..,"worker_id":..,"namespace":hex,"keys":[hex,..]}`. Reply:
 * `{"workers":[name,..],"blocks":[[index,..],..]}`, with one list per key of the indices of the
 * workers that have the block, best first. An invalid reply counts as none. If a caller's deadline
 * is short, the locator still waits for the reply, to measure the router's latency. Callers whose
 * deadline is below the measured latency then skip the router for a while.
 */
export class BusLocator implements Locator {
  readonly #options: BusLocatorOptions;
  #quietUntilMs = 0;
  /**
   * Latency of the router's latest reply in milliseconds, and the monotonic time until which it is
   * assumed to be current.
   */
  #latencyMs = 0;
  #latencyUntilMs = 0;
  /** Send times of the requests to which the router has not replied, oldest first. */
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

  /** Sends one request to the router. Never rejects. */
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
      // A failed request counts as a router that does not reply.
      if (!signal.aborted) this.#quietUntilMs = clock.monotonicMs() + QUIET_MS;
      return null;
    } finally {
      this.#asked.delete(asked);
    }
  }
}

/** Decodes a reply about `count` keys, without the worker `self`. Null if the reply is invalid. */
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
