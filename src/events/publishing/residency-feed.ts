import type {
  KeySpace,
  ResidencyBatch,
  ResidencyChange,
  ResidencyHeartbeat,
  ResidencySource,
} from "../../observability/activity/index.ts";
import { splitChange } from "../index.ts";
import { ChangeRing, type RingLimits } from "./change-ring.ts";
import { type Held, joinDigests } from "./held.ts";

/** Blocks in one change: it fits into a message of any broker. */
const CHANGE_BLOCKS_MAX = 1_024;

export interface FeedOptions {
  readonly source: ResidencySource;
  readonly ring: RingLimits;
  readonly mode: ResidencyHeartbeat["mode"];
  readonly everyMs: number;
  /** What it tells of. Their sets have no hash in common. */
  readonly held: readonly Held[];
  /** As many as there are; the latest ones are told. */
  readonly spaces: () => readonly KeySpace[];
  /** Whether all that the device holds is told from the start; true if left out. */
  readonly isDeviceKnown?: boolean;
  /** Has everything that happened so far pushed. */
  readonly flush: () => void;
}

/** Spaces in one heartbeat, as all readers take them. */
const SPACES_MAX = 16;

export type FeedListener = (batch: ResidencyBatch) => void;

/** What one rank of this host says it holds: gives changes their numbers, and keeps the latest. */
export class ResidencyFeed {
  readonly ring: ChangeRing;
  readonly #options: FeedOptions;
  readonly #listeners = new Set<FeedListener>();
  readonly #knownListeners = new Set<() => void>();
  #isDeviceKnown: boolean;

  constructor(options: FeedOptions) {
    this.#options = options;
    this.#isDeviceKnown = options.isDeviceKnown ?? true;
    this.ring = new ChangeRing(options.ring);
  }

  get source(): ResidencySource {
    return this.#options.source;
  }
  get everyMs(): number {
    return this.#options.everyMs;
  }
  get held(): readonly Held[] {
    return this.#options.held;
  }
  /** Of the latest change that was pushed. */
  get lastSequence(): number {
    return this.ring.last;
  }

  /** Whether all that the device holds is told. */
  get isDeviceKnown(): boolean {
    return this.#isDeviceKnown;
  }

  setDeviceKnown(isKnown: boolean): void {
    if (isKnown === this.#isDeviceKnown) return;
    this.#isDeviceKnown = isKnown;
    for (const listener of this.#knownListeners) listener();
  }

  /** Called when `isDeviceKnown` changed; must not throw. */
  onDeviceKnown(listener: () => void): Disposable {
    this.#knownListeners.add(listener);
    return { [Symbol.dispose]: () => this.#knownListeners.delete(listener) };
  }

  /** Has everything that happened so far pushed. */
  flush(): void {
    this.#options.flush();
  }

  /** What `held` has changed already. */
  push(changes: readonly ResidencyChange[]): void {
    const split = changes.flatMap((change) => splitChange(change, CHANGE_BLOCKS_MAX));
    if (split.length === 0) return;
    const firstSequence = this.ring.last + 1;
    for (const change of split) this.ring.push(change);
    const batch = { source: this.source, firstSequence, changes: split };
    for (const listener of this.#listeners) listener(batch);
  }

  /** Called for each batch from now on, in order; must not throw. */
  listen(listener: FeedListener): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  /** As it is now: numbers and digests are those of the same moment. */
  heartbeat(isClosing = false): ResidencyHeartbeat {
    this.flush();
    const { source, mode, everyMs, held } = this.#options;
    return {
      ...{ source, mode, everyMs, isClosing },
      lastSequence: this.ring.last,
      spaces: this.#options.spaces().slice(-SPACES_MAX),
      digests: joinDigests(held.map(({ digests }) => digests)),
      isDeviceKnown: this.#isDeviceKnown,
    };
  }
}
