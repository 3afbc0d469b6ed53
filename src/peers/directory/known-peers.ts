import type { Clock, WorkerId } from "../../core/index.ts";
import type { HardwareReport } from "../messages.ts";
import type { Endpoint, TransportLog, TransportName } from "../transport.ts";
import type { Announcement } from "./announcement.ts";

/**
 * A host from which blocks can be requested, known from the configuration or from its
 * announcements.
 */
export interface PeerRecord {
  readonly worker: WorkerId;
  /** Identifies a run of the agent's process; changes at each start. 0n if unknown. */
  readonly incarnation: bigint;
  readonly endpoints: Readonly<Partial<Record<TransportName, Endpoint>>>;
  /** Hardware that the host announced. Null if unknown. */
  readonly hardware: HardwareReport | null;
  /**
   * Keys, in hex, of the namespaces of which the host has blocks. Null if unknown: it may have
   * blocks of any namespace.
   */
  readonly namespaces: ReadonlySet<string> | null;
  /**
   * `static`: named in the configuration, so kept even without announcements. `announced`: known
   * only from announcements.
   */
  readonly origin: "static" | "announced";
  /**
   * Monotonic time in milliseconds of the latest announcement. Null if a static host has sent none.
   */
  readonly heardMs: number | null;
}

/**
 * The hosts known to this host. Their number is bounded; the announced host with the oldest
 * announcement is removed first.
 */
export interface Members {
  get(worker: WorkerId): PeerRecord | null;
  list(): readonly PeerRecord[];
  /** Calls the listener for each host that appears, changes, restarts or leaves. */
  onChange(
    listener: (change: {
      readonly kind: "came" | "changed" | "restarted" | "went";
      readonly peer: PeerRecord;
    }) => void,
  ): Disposable;
}

/**
 * Peers that probably have a block, best first. Uses only local knowledge: the peers' summaries and
 * earlier replies. Never returns a peer that is known not to have the block.
 */
export interface BlockHolders {
  /**
   * Returns the peers that probably have a block. The block's 32-byte `BlockKey` is at byte offset
   * `at` of `keys`.
   */
  holders(namespaceKey: Uint8Array, keys: Uint8Array, at: number): readonly WorkerId[];
  /** Reports that the peer lacks a block that its summary lists. */
  wasWrong(worker: WorkerId, namespaceKey: Uint8Array, key: Uint8Array): void;
}

/** Finds blocks' locations through the router's NATS service `kv-locate`. */
export interface Locator {
  /**
   * Returns for each key (32 bytes) the workers that have the block, best first. Null if there is
   * no router, or no reply within `deadlineMs`. Never throws.
   */
  locate(
    namespaceKey: Uint8Array,
    keys: readonly Uint8Array[],
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<readonly (readonly WorkerId[])[] | null>;
}

type Change = Parameters<Parameters<Members["onChange"]>[0]>[0];

/** Name and addresses of a host from the configuration. */
export type StaticPeer = Pick<PeerRecord, "worker" | "endpoints">;

export interface KnownPeersOptions {
  /** Name of this host, which is never added. */
  readonly self: WorkerId;
  readonly clock: Clock;
  /** Maximum number of hosts known only from announcements. */
  readonly announcedMax?: number;
  readonly log?: TransportLog;
}

/**
 * Earlier incarnations announced under one worker name, and whether a warning about them was
 * logged.
 */
interface Formers {
  readonly incarnations: Set<bigint>;
  isTold: boolean;
}

const ANNOUNCED_MAX = 1_024;
/** A host that sends no announcement for this many of its announcement intervals is removed. */
const SILENT_INTERVALS = 3;
const LOOK_MS = 500;
/** Maximum number of earlier incarnations remembered per worker. The oldest are dropped. */
const FORMERS_MAX = 16;

/**
 * The known hosts, from the configuration and from announcements. If both name a host, its
 * addresses come from the configuration and its other properties from announcements. If two
 * processes announce the same name, the later one is used until it stops sending announcements;
 * those of the earlier one are ignored.
 */
export class KnownPeers implements Members, Disposable {
  readonly #options: KnownPeersOptions;
  readonly #known = new Map<WorkerId, PeerRecord>();
  readonly #silentAtMs = new Map<WorkerId, number>();
  readonly #formers = new Map<WorkerId, Formers>();
  readonly #listeners = new Set<(change: Change) => void>();
  readonly #timer: Disposable;
  #lookedMs: number;

  constructor(options: KnownPeersOptions) {
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

  /** Replaces the hosts named in the configuration. */
  setListed(listed: readonly StaticPeer[]): void {
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

  /** Adds or updates the host that sent an announcement. */
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

  /**
   * Removes a host that announced that it is leaving. Does nothing if a newer process has announced
   * itself under the same name.
   */
  left({ worker, incarnation }: Pick<Announcement, "worker" | "incarnation">): void {
    const record = this.#known.get(worker);
    if (record?.incarnation === incarnation) this.#silence(record);
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#listeners.clear();
  }

  /**
   * Removes hosts that stopped sending announcements. If this process was suspended, the time
   * limits are extended by the suspended time, so that waiting announcements are read first.
   */
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

  /**
   * Returns whether an announcement comes from an earlier process than the current one. If so, two
   * running processes use the same name.
   */
  #isFormer({ worker, incarnation: current }: PeerRecord, incarnation: bigint): boolean {
    if (!this.#silentAtMs.has(worker) || current === incarnation) return false;
    const formers = this.#formers.getOrInsertComputed(worker, () => ({
      incarnations: new Set(),
      isTold: false,
    }));
    const { incarnations } = formers;
    if (incarnations.has(incarnation)) {
      if (!formers.isTold) {
        const text = "two hosts announce the same worker name; using the latest";
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

  /**
   * Removes a host known only from announcements. A static host stays, without its announced
   * properties.
   */
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
    if (kind !== null) this.#notify({ kind, peer: record });
  }

  #remove(record: PeerRecord): void {
    this.#known.delete(record.worker);
    this.#formers.delete(record.worker);
    this.#silentAtMs.delete(record.worker);
    this.#notify({ kind: "went", peer: record });
  }

  #notify(change: Change): void {
    for (const listener of [...this.#listeners]) listener(change);
  }
}

/** Returns how a host has changed. Null if only the time of its announcement has changed. */
function changeOf(before: PeerRecord, after: PeerRecord): "restarted" | "changed" | null {
  const isOther = before.incarnation !== after.incarnation;
  if (isOther && before.incarnation !== 0n) return "restarted";
  const isSame = Bun.deepEquals({ ...before, heardMs: null }, { ...after, heardMs: null });
  return isSame ? null : "changed";
}
