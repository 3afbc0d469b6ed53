import type { Clock, WorkerId } from "../../core/index.ts";

const KEPT_MAX = 65_536;
const KEPT_MS = 60_000;
const PREFIX_BYTES = 8;

/**
 * Blocks that peers seemed to have and did not, for a minute each: a summary errs for the same
 * keys again and again. Bounded; the oldest go first.
 */
export class WrongAnswers {
  readonly #clock: Clock;
  /** By worker, then namespace, then the key's first bytes: until when. */
  readonly #until = new Map<WorkerId, Map<string, Map<bigint, number>>>();
  #kept = 0;
  #count = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Since the start. */
  get count(): number {
    return this.#count;
  }

  add(worker: WorkerId, namespace: string, key: Uint8Array): void {
    this.#count++;
    if (this.#kept >= KEPT_MAX) this.#clear();
    const byNamespace = this.#until.getOrInsertComputed(worker, () => new Map());
    const byKey = byNamespace.getOrInsertComputed(namespace, () => new Map<bigint, number>());
    const prefix = prefixOf(key, 0);
    if (!byKey.has(prefix)) this.#kept++;
    byKey.set(prefix, this.#clock.monotonicMs() + KEPT_MS);
  }

  /** The key's 32 bytes stand at `at`. */
  has(worker: WorkerId, namespace: string, keys: Uint8Array, at: number): boolean {
    const byKey = this.#until.get(worker)?.get(namespace);
    if (byKey === undefined) return false;
    const untilMs = byKey.get(prefixOf(keys, at));
    return untilMs !== undefined && this.#clock.monotonicMs() < untilMs;
  }

  /** What the peer said is out of date. */
  forget(worker: WorkerId, namespace: string): void {
    const byNamespace = this.#until.get(worker);
    this.#kept -= byNamespace?.get(namespace)?.size ?? 0;
    byNamespace?.delete(namespace);
  }

  forgetAll(worker: WorkerId): void {
    for (const namespace of [...(this.#until.get(worker)?.keys() ?? [])]) {
      this.forget(worker, namespace);
    }
    this.#until.delete(worker);
  }

  /** Rare, and what is forgotten is only asked for once more. */
  #clear(): void {
    this.#until.clear();
    this.#kept = 0;
  }
}

function prefixOf(keys: Uint8Array, at: number): bigint {
  return new DataView(keys.buffer, keys.byteOffset + at, PREFIX_BYTES).getBigUint64(0, true);
}
