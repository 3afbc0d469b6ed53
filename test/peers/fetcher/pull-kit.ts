import type { NamespaceIndex, WorkerId } from "../../../src/core/index.ts";
import { seededRandom } from "../../../src/core/index.ts";
import {
  type FetchEvent,
  Fetcher,
  type FetchLimits,
  type Locator,
  type Members,
  type PeerRecord,
  type PullOptions,
  type TransportName,
} from "../../../src/peers/index.ts";
import type { FetchOutcome } from "../../../src/store/index.ts";
import { ManualClock } from "../../support/manual-clock.ts";
import { ScriptedBlocks } from "../../support/scripted-blocks.ts";
import { ScriptedHost, ScriptedTransport } from "../../support/scripted-peers.ts";

export const SPACE = 1 as NamespaceIndex;
export const OTHER_SPACE = 2 as NamespaceIndex;

export const LIMITS: FetchLimits = {
  bytesMax: 1_000_000,
  peerBytesMax: 1_000_000,
  namespaceBytesMax: 1_000_000,
  itemsMax: 64,
  progressMs: 2_000,
  dialMs: 1_000,
  cooldownMs: 1_000,
  cooldownMaxMs: 30_000,
  transports: "auto",
  prefillTokensPerS: null,
  mirrorPulls: true,
};

class ScriptedMembers implements Members {
  readonly records = new Map<WorkerId, PeerRecord>();
  readonly #listeners = new Set<Parameters<Members["onChange"]>[0]>();

  get(worker: WorkerId): PeerRecord | null {
    return this.records.get(worker) ?? null;
  }

  list(): readonly PeerRecord[] {
    return [...this.records.values()];
  }

  onChange(listener: Parameters<Members["onChange"]>[0]): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  tell(kind: "came" | "changed" | "restarted" | "went", peer: PeerRecord): void {
    if (kind === "went") this.records.delete(peer.worker);
    for (const listener of this.#listeners) listener({ kind, peer });
  }
}

export interface KitOptions {
  readonly hosts?: readonly string[];
  readonly transports?: readonly TransportName[];
  readonly limits?: Partial<FetchLimits>;
  readonly locator?: Locator;
  readonly tokensPerBlock?: number | null;
  readonly stopMs?: number;
  /** Hardware of this host. */
  readonly hasRdmaNic?: boolean;
}

/** A fetcher with scripted hosts, on a manual clock. */
export class PullKit implements AsyncDisposable {
  readonly clock = new ManualClock();
  readonly blocks = new ScriptedBlocks();
  readonly members = new ScriptedMembers();
  readonly hosts = new Map<string, ScriptedHost>();
  readonly events: FetchEvent[] = [];
  readonly wrong: string[] = [];
  /** Supposed holders of a block; default: all hosts. */
  holders: (digest: Uint8Array) => readonly string[] = () => [...this.hosts.keys()];
  readonly puller: Fetcher;
  readonly limits: FetchLimits;

  constructor(options: KitOptions = {}) {
    const { clock, blocks, hosts } = this;
    for (const name of options.hosts ?? ["a"]) this.addHost(name);
    const net = { clock, hosts, blocks, stopMs: options.stopMs ?? 0 };
    const transports = (options.transports ?? ["stream"]).map(
      (name) => new ScriptedTransport(name, net),
    );
    this.limits = { ...LIMITS, ...options.limits };
    const hasRdmaNic = options.hasRdmaNic ?? false;
    const hardware = { hasRdmaNic, rdmaDevices: [], cores: 1, hasAes: true };
    this.puller = new Fetcher({
      self: { worker: "me" as WorkerId, incarnation: 1n, hardware },
      ...{ blocks, transports, clock, members: this.members },
      blockHolders: {
        holders: (_, keys, at) => this.holders(keys.subarray(at, at + 32)) as WorkerId[],
        wasWrong: (worker) => void this.wrong.push(worker),
      },
      locator: options.locator ?? null,
      namespaces: { keyOf: (index) => (index > 2 ? null : new Uint8Array(32).fill(index)) },
      deriveKeys: (digests) => digests.slice(),
      tokensPerBlock: () => options.tokensPerBlock ?? null,
      random: seededRandom(5),
      log: () => undefined,
      onEvent: (event) => void this.events.push(event),
      limits: this.limits,
    });
  }

  addHost(name: string): ScriptedHost {
    const host = new ScriptedHost(name);
    this.hosts.set(name, host);
    const endpoint = { host: "127.0.0.1", port: 1 };
    this.members.records.set(host.worker, {
      worker: host.worker,
      incarnation: 1n,
      endpoints: { stream: endpoint, quic: endpoint, rdma: endpoint },
      ...{ hardware: null, namespaces: null, origin: "static", heardMs: null },
    });
    return host;
  }

  host(name: string): ScriptedHost {
    return this.hosts.get(name)!;
  }

  pull(blocks: readonly number[], options: Partial<PullOptions> = {}, space = SPACE) {
    return this.puller.pull(space, blocks.map(block), {
      ...{ priority: "acquire", deadlineMs: 10_000, sources: [], always: false },
      ...{ signal: new AbortController().signal, stopAtMiss: false },
      ...options,
    });
  }

  /** Advances the clock until the promise is settled. */
  async settle<T>(promise: Promise<T>, maxMs = 60_000): Promise<T> {
    let settled = false;
    const mark = () => {
      settled = true;
    };
    void promise.then(mark, mark);
    for (let ms = 0; ms < maxMs && !settled; ms++) await this.clock.advanceAsync(1);
    if (!settled) throw new Error(`not settled within ${maxMs} ms`);
    return await promise;
  }

  /** The kinds of the outcomes; releases the blocks that arrived. */
  async kinds(promise: Promise<FetchOutcome[]>): Promise<string[]> {
    const outcomes = await this.settle(promise);
    for (const outcome of outcomes) if (outcome.kind === "ok") outcome.arrival.release(true);
    return outcomes.map(({ kind }) => kind);
  }

  kindsOfEvents(): string[] {
    return this.events.map(({ kind }) => kind);
  }

  /** Closes the fetcher and lists the resources that it leaked; empty if none. */
  async leftovers(): Promise<string[]> {
    await this.settle(Promise.resolve(this.puller[Symbol.asyncDispose]()));
    const { inFlightBytes, waiting } = this.puller.stats;
    const left = [...this.blocks.faults];
    if (inFlightBytes !== 0) left.push(`${inFlightBytes} bytes are still granted`);
    if (waiting !== 0) left.push(`${waiting} blocks still wait`);
    if (this.blocks.open !== 0) left.push(`${this.blocks.open} places are still taken`);
    if (this.blocks.arrivals !== this.blocks.released)
      left.push(`${this.blocks.arrivals} arrivals, ${this.blocks.released} released`);
    const connections = [...this.hosts.values()].reduce((sum, host) => sum + host.links.size, 0);
    if (connections !== 0) left.push(`${connections} links are open`);
    if (this.clock.pending !== 0) left.push(`${this.clock.pending} timers are pending`);
    return left;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const left = await this.leftovers();
    if (left.length > 0) throw new Error(left.join("; "));
  }
}

export function block(number: number): { digest: Uint8Array; layer: number } {
  const digest = new Uint8Array(32);
  new DataView(digest.buffer).setUint32(0, number + 1, true);
  new DataView(digest.buffer).setUint32(28, number + 1, true);
  return { digest, layer: 0xffff_ffff };
}
