import type { Clock, WorkerId } from "../../core/index.ts";
import type { HardwareReport } from "../messages.ts";
import type { Endpoint, TransportLog, TransportName } from "../transport.ts";
import type { Announcement } from "./announcement.ts";

/** A host that blocks may be asked of, as the configuration or its own announcements say. */
export interface PeerRecord {
  readonly worker: WorkerId;
  /** Of its process; 0n: not known yet. Another one than before means that it was restarted. */
  readonly incarnation: bigint;
  readonly endpoints: Readonly<Partial<Record<TransportName, Endpoint>>>;
  /** Null: not known yet. */
  readonly hardware: HardwareReport | null;
  /** Keys (hex) of the namespaces it says it has blocks of; null: not known, so any. */
  readonly namespaces: ReadonlySet<string> | null;
  /** `static`: from the configuration, and never forgotten. */
  readonly origin: "static" | "announced";
  /** Monotonic, when it was last heard of; null for a static one that was not. */
  readonly heardMs: number | null;
}

/** The hosts that are known now. Bounded; the one not heard of for the longest time goes first. */
export interface Members {
  get(worker: WorkerId): PeerRecord | null;
  list(): readonly PeerRecord[];
  /** Called with each host that came, changed, was restarted or went. */
  onChange(
    listener: (change: {
      readonly kind: "came" | "changed" | "restarted" | "went";
      readonly peer: PeerRecord;
    }) => void,
  ): Disposable;
}

/**
 * Who probably has blocks, the likeliest first; at once, from what is known: summaries of peers and
 * earlier answers. Nobody is named who is known not to have the block.
 */
export interface Whereabouts {
  /** `key`: the `BlockKey`, 32 bytes at `at`. */
  holders(namespaceKey: Uint8Array, keys: Uint8Array, at: number): readonly WorkerId[];
  /** The peer did not have what it was believed to have. */
  wasWrong(worker: WorkerId, namespaceKey: Uint8Array, key: Uint8Array): void;
}

/** The router's word on who has blocks: the NATS service `kv-locate`. */
export interface Locator {
  /**
   * For each key (32 bytes) the workers that have it, the best first. Null: nobody answered within
   * `deadlineMs`, or there is no router. Never throws.
   */
  locate(
    namespaceKey: Uint8Array,
    keys: readonly Uint8Array[],
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<readonly (readonly WorkerId[])[] | null>;
}

type Change = Parameters<Parameters<Members["onChange"]>[0]>[0];

/** A host that the configuration names. */
export type ListedMember = Pick<PeerRecord, "worker" | "endpoints">;

export interface KnownMembersOptions {
  /** Whoever this is; never one of the members. */
  readonly self: WorkerId;
  readonly clock: Clock;
  /** Hosts that announce themselves; those that are listed are always known. */
  readonly announcedMax?: number;
  readonly log?: TransportLog;
}

/** Processes that announced themselves under one name before the one that counts now. */
interface Formers {
  readonly incarnations: Set<bigint>;
  isTold: boolean;
}

const ANNOUNCED_MAX = 1_024;
/** A host that was silent for so many of its intervals is gone. */
const SILENT_INTERVALS = 3;
const LOOK_MS = 500;
/** Of one worker; those remembered for longest go. */
const FORMERS_MAX = 16;

/**
 * Hosts from the configuration and from announcements. Of a host that both name, the configuration
 * says where it is, and announcements what it is. Where two announce themselves under one name, the
 * one that came last counts until it is silent: what a former one says changes nothing.
 */
export class KnownMembers implements Members, Disposable {
  readonly #options: KnownMembersOptions;
  readonly #known = new Map<WorkerId, PeerRecord>();
  readonly #silentAtMs = new Map<WorkerId, number>();
  readonly #formers = new Map<WorkerId, Formers>();
  readonly #listeners = new Set<(change: Change) => void>();
  readonly #timer: Disposable;
  #lookedMs: number;

  constructor(options: KnownMembersOptions) {
    this.#options = options;
    this.#lookedMs = options.clock.monotonicMs();
    this.#timer = options.clock.every(LOOK_MS, () => this.#forgetSilent());
  }

  get(worker: WorkerId): PeerRecord | null {
    return this.#known.get(worker) ?? null;
  }

  list(): readonly PeerRecord[] {
    return [...this.#known.values()];
  }

  onChange(listener: (change: Change) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  /** The configuration's hosts from now on, in the place of those it named before. */
  setListed(listed: readonly ListedMember[]): void {
    const wanted = new Map(listed.map((member) => [member.worker, member]));
    wanted.delete(this.#options.self);
    for (const record of [...this.#known.values()]) {
      if (record.origin === "static" && !wanted.has(record.worker)) this.#remove(record);
    }
    for (const { worker, endpoints } of wanted.values()) {
      const before = this.#known.get(worker);
      const unheard = { incarnation: 0n, hardware: null, namespaces: null, heardMs: null };
      this.#put({ ...(before ?? unheard), worker, endpoints, origin: "static" });
    }
  }

  /** A host said that it is there. */
  heard(announcement: Announcement): void {
    const { worker, incarnation, everyMs, hardware, namespaces } = announcement;
    if (worker === this.#options.self) return;
    const before = this.#known.get(worker);
    if (before === undefined) this.#makeRoom();
    else if (this.#isFormer(before, incarnation)) return;
    const heardMs = this.#options.clock.monotonicMs();
    this.#silentAtMs.set(worker, heardMs + everyMs * SILENT_INTERVALS);
    const isListed = before?.origin === "static";
    this.#put({
      worker,
      incarnation,
      endpoints: isListed ? before.endpoints : announcement.endpoints,
      hardware,
      namespaces: namespaces === null ? null : new Set(namespaces),
      origin: isListed ? "static" : "announced",
      heardMs,
    });
  }

  /** A host said that it ends. What its successor said already stands. */
  left({ worker, incarnation }: Pick<Announcement, "worker" | "incarnation">): void {
    const record = this.#known.get(worker);
    if (record?.incarnation === incarnation) this.#silence(record);
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#listeners.clear();
  }

  /** What came while this process stood still is read after this: nobody is forgotten for that. */
  #forgetSilent(): void {
    const nowMs = this.#options.clock.monotonicMs();
    const stoodMs = nowMs - this.#lookedMs - LOOK_MS;
    this.#lookedMs = nowMs;
    for (const [worker, untilMs] of [...this.#silentAtMs]) {
      const silentAtMs = untilMs + (stoodMs > LOOK_MS ? stoodMs : 0);
      this.#silentAtMs.set(worker, silentAtMs);
      const record = this.#known.get(worker);
      if (nowMs >= silentAtMs && record !== undefined) this.#silence(record);
    }
  }

  /** A process that is gone says nothing more: two have the same name. */
  #isFormer({ worker, incarnation: current }: PeerRecord, incarnation: bigint): boolean {
    if (!this.#silentAtMs.has(worker) || current === incarnation) return false;
    const formers = this.#formers.getOrInsertComputed(worker, () => ({
      incarnations: new Set(),
      isTold: false,
    }));
    const { incarnations } = formers;
    if (incarnations.has(incarnation)) {
      if (!formers.isTold) {
        const text = "two hosts announce themselves under one name; the one that came last counts";
        this.#options.log?.("warn", text, { worker });
      }
      formers.isTold = true;
      return true;
    }
    const [oldest] = incarnations;
    if (incarnations.size >= FORMERS_MAX) incarnations.delete(oldest!);
    incarnations.add(current);
    return false;
  }

  /** One of the configuration stays; what it said of itself does not. */
  #silence(record: PeerRecord): void {
    this.#silentAtMs.delete(record.worker);
    this.#formers.delete(record.worker);
    if (record.origin === "announced") this.#remove(record);
    else this.#put({ ...record, hardware: null, namespaces: null });
  }

  #makeRoom(): void {
    const announced = this.list().filter(({ origin }) => origin === "announced");
    if (announced.length < (this.#options.announcedMax ?? ANNOUNCED_MAX)) return;
    const longest = announced.reduce((a, b) => ((a.heardMs ?? 0) <= (b.heardMs ?? 0) ? a : b));
    this.#remove(longest);
  }

  #put(record: PeerRecord): void {
    const before = this.#known.get(record.worker);
    this.#known.set(record.worker, Object.freeze(record));
    const kind = before === undefined ? "came" : changeOf(before, record);
    if (kind !== null) this.#tell({ kind, peer: record });
  }

  #remove(record: PeerRecord): void {
    this.#known.delete(record.worker);
    this.#formers.delete(record.worker);
    this.#silentAtMs.delete(record.worker);
    this.#tell({ kind: "went", peer: record });
  }

  #tell(change: Change): void {
    for (const listener of [...this.#listeners]) listener(change);
  }
}

/** Null: it is as it was, apart from when it was heard of. */
function changeOf(before: PeerRecord, after: PeerRecord): "restarted" | "changed" | null {
  const isOther = before.incarnation !== after.incarnation;
  if (isOther && before.incarnation !== 0n) return "restarted";
  const isSame = Bun.deepEquals({ ...before, heardMs: null }, { ...after, heardMs: null });
  return isSame ? null : "changed";
}
