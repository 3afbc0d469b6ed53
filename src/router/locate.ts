import type { Bus, BusMessage, Subscription } from "../bus/index.ts";
import { type Clock, isWorkerId, type WorkerId } from "../core/index.ts";
import { RESIDENCY_TIERS } from "../observability/activity/index.ts";
import type { ActiveLoad } from "./active-load.ts";
import { readFields } from "./message.ts";
import type { BlockHolder, PrefixIndex } from "./prefix-index.ts";
import type { Target, TargetId, WorkerTable } from "./workers.ts";

/**
 * NATS subject on which hosts query which workers have a block. Format: docs/internals/peers.md.
 */
export const LOCATE_SUBJECT = "kv-locate";
/** Maximum workers in the reply for one block. */
const WORKERS_MAX = 16;
/** Maximum workers read from the index for one block. The best of them are in the reply. */
const HOLDERS_MAX = 64;

interface LocateOptions {
  /** Bus that carries queries and replies. The caller closes it. */
  readonly bus: Bus;
  readonly clock: Clock;
  readonly cluster: string;
  readonly index: PrefixIndex;
  readonly table: WorkerTable;
  readonly load: Pick<ActiveLoad, "of">;
  /**
   * Maximum queries answered per second. Further queries get no reply; their clients time out and
   * continue without one.
   */
  readonly questionsPerSecond?: number;
}

/** Sort keys of a worker in a reply; lower is better. */
interface Ranked {
  readonly worker: WorkerId;
  readonly isDoubtful: boolean;
  readonly isOnDisk: boolean;
  readonly busy: number;
}

const QUESTIONS_PER_SECOND = 2_000;
const SECOND_MS = 1_000;
const IN_RAM = 1 << RESIDENCY_TIERS.indexOf("host");
const BELOW_GPU = IN_RAM | (1 << RESIDENCY_TIERS.indexOf("disk"));

/**
 * Answers `kv-locate` queries from the index: for each block, the workers that can serve it. Live
 * workers with complete events come first, then workers with the block in RAM rather than on SSD,
 * then less loaded ones. Replies omit the requesting worker and blocks that are only on a GPU. If a
 * cluster has several routers, one of them answers each query.
 */
export class LocateService implements Disposable {
  readonly #options: LocateOptions;
  readonly #subscription: Subscription;
  readonly #timer: Disposable;
  #left: number;
  readonly stats = {
    answered: 0,
    /** Malformed queries, and queries for another cluster. They get no reply. */
    refused: 0,
    dropped: 0,
    /** Queried block keys for which the reply named at least one worker. */
    found: 0,
    keys: 0,
  };

  constructor(options: LocateOptions) {
    const { bus, clock, cluster, questionsPerSecond = QUESTIONS_PER_SECOND } = options;
    this.#options = options;
    this.#left = questionsPerSecond;
    this.#timer = clock.every(SECOND_MS, () => {
      this.#left = questionsPerSecond;
    });
    const take = (message: BusMessage) => this.#take(message);
    this.#subscription = bus.subscribe(LOCATE_SUBJECT, take, `routers-${cluster}`);
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#subscription.unsubscribe();
  }

  #take({ data, reply }: BusMessage): void {
    if (reply === null) return;
    if (this.#left === 0) {
      this.stats.dropped++;
      return;
    }
    this.#left--;
    const question = readQuestion(data);
    if (question === null || question.cluster !== this.#options.cluster) {
      this.stats.refused++;
      return;
    }
    this.stats.answered++;
    this.#options.bus.publish(reply, Buffer.from(JSON.stringify(this.#answer(question))));
  }

  #answer({ hashes, client, namespace }: LocateQuestion): object {
    const places = new Map<WorkerId, number>();
    const lenders = new Map<TargetId, Omit<Ranked, "isOnDisk"> | null>();
    const lenderOf = (id: TargetId) => {
      let lender = lenders.get(id);
      if (lender === undefined) {
        lender = this.#lender(id, client, namespace);
        lenders.set(id, lender);
      }
      return lender;
    };
    const blocks = this.#options.index.holders(hashes, HOLDERS_MAX).map((holders) => {
      const workers = best(holders, lenderOf);
      if (workers.length > 0) this.stats.found++;
      return workers.map((worker) => {
        const at = places.get(worker) ?? places.size;
        places.set(worker, at);
        return at;
      });
    });
    this.stats.keys += hashes.length;
    return { workers: [...places.keys()], blocks };
  }

  /**
   * Returns a target's sort keys. Null if the target is the requesting worker, is unknown, or has
   * no blocks of that namespace.
   */
  #lender(id: TargetId, client: WorkerId, namespace: string): Omit<Ranked, "isOnDisk"> | null {
    const { table, load } = this.#options;
    const target = table.get(id);
    if (target === null || target.worker === client || !hasNamespace(target, namespace))
      return null;
    const isDoubtful = target.state === "stale" || !target.isKnown;
    return { worker: target.worker, isDoubtful, busy: load.of(id).activeBlocks };
  }
}

function best(
  holders: readonly BlockHolder[],
  lenderOf: (id: TargetId) => Omit<Ranked, "isOnDisk"> | null,
): WorkerId[] {
  const ranked: Ranked[] = [];
  for (const { target, tiers } of holders) {
    const lender = (tiers & BELOW_GPU) === 0 ? null : lenderOf(target);
    if (lender !== null) ranked.push({ ...lender, isOnDisk: (tiers & IN_RAM) === 0 });
  }
  ranked.sort(
    (a, b) =>
      Number(a.isDoubtful) - Number(b.isDoubtful) ||
      Number(a.isOnDisk) - Number(b.isOnDisk) ||
      a.busy - b.busy,
  );
  return [...new Set(ranked.map(({ worker }) => worker))].slice(0, WORKERS_MAX);
}

function hasNamespace({ spaces }: Target, namespace: string): boolean {
  return spaces.some(
    (space) => space.kind === "blocks" && space.namespaceKey.toHex() === namespace,
  );
}

/** Query of a host: which workers have these blocks of one namespace? */
interface LocateQuestion {
  readonly cluster: string;
  readonly client: WorkerId;
  /** Namespace key in hexadecimal. */
  readonly namespace: string;
  /** First eight bytes of each `BlockKey`, little-endian. */
  readonly hashes: BigUint64Array;
}

/** Maximum block keys in one query. */
export const LOCATE_KEYS_MAX = 1_024;
const QUESTION_BYTES_MAX = 128 * 1024;
const KEY = /^[0-9a-f]{64}$/;

/**
 * Parses a query from an untrusted sender. Returns null if it is malformed or of another version.
 */
export function readQuestion(data: Uint8Array): LocateQuestion | null {
  const fields = readFields(data, QUESTION_BYTES_MAX);
  if (fields === null || fields.version !== 1) return null;
  const { cluster, worker_id: client, namespace, keys } = fields;
  const isSound =
    typeof cluster === "string" &&
    typeof client === "string" &&
    isWorkerId(client) &&
    typeof namespace === "string" &&
    KEY.test(namespace) &&
    Array.isArray(keys) &&
    keys.length <= LOCATE_KEYS_MAX;
  if (!isSound) return null;
  const hashes = new BigUint64Array(keys.length);
  const bytes = new Uint8Array(hashes.buffer);
  for (const [at, key] of keys.entries()) {
    if (typeof key !== "string" || !KEY.test(key)) return null;
    bytes.subarray(at * 8, at * 8 + 8).setFromHex(key.slice(0, 16));
  }
  return { cluster, client, namespace, hashes };
}
