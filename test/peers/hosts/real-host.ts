import {
  type NamespaceIndex,
  systemClock,
  systemRandom,
  toHex,
  type WorkerId,
} from "../../../src/core/index.ts";
import { blockKeys } from "../../../src/identity/index.ts";
import { type Lanes, loadNative, openLanes, Queue, Region } from "../../../src/native/index.ts";
import {
  type Endpoint,
  type FetchEvent,
  Fetcher,
  type FetchLimits,
  KnownPeers,
  type PeerServer,
  type Transport,
  type TransportName,
  type Trust,
} from "../../../src/peers/index.ts";
import { BlockServer, SERVE_LIMITS } from "../../../src/peers/server/index.ts";
import { QuicTransport } from "../../../src/peers/transports/quic/index.ts";
import { StreamTransport } from "../../../src/peers/transports/stream/index.ts";
import { Namespaces, TieredStore } from "../../../src/store/index.ts";
import { StoreEngine } from "../../store/store-engine.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { LIMITS, type TransportMaker } from "../transports/contract-kit.ts";

export const MIB = 2 ** 20;
/** The namespace of all blocks here. */
export const NAMESPACE_KEY = new Uint8Array(32).fill(7);
const NAMESPACE = 1 as NamespaceIndex;

export const PULL_LIMITS: FetchLimits = {
  bytesMax: 64 * MIB,
  peerBytesMax: 32 * MIB,
  namespaceBytesMax: 64 * MIB,
  itemsMax: 64,
  progressMs: 2_000,
  dialMs: 2_000,
  cooldownMs: 500,
  cooldownMaxMs: 5_000,
  transports: "auto",
  prefillTokensPerS: null,
  mirrorPulls: true,
};

export interface RealHostOptions {
  readonly trust: Trust;
  readonly worker: string;
  readonly arenaBytes: number;
  readonly transports: readonly TransportName[];
  readonly limits?: Partial<FetchLimits>;
  /** Wraps the server in front of the store. */
  readonly wrap?: (inner: PeerServer, region: Region) => PeerServer;
  /** Listening address; default: this machine only. */
  readonly listenAt?: string;
  /** Makers of transports that need more than a certificate, as for the contract suite. */
  readonly makers?: Partial<Record<TransportName, TransportMaker>>;
  /** Maps the announced port of this host's lanes. */
  readonly lanesPort?: (real: number) => number;
}

/** A complete host without an agent: real store, transports, server and fetcher. */
export class RealHost implements AsyncDisposable {
  readonly worker: WorkerId;
  readonly region: Region;
  readonly queue: Queue;
  readonly store: TieredStore;
  readonly members: KnownPeers;
  readonly transports: readonly Transport[];
  readonly server: PeerServer;
  readonly puller: Fetcher;
  readonly events: FetchEvent[] = [];
  readonly endpoints: Partial<Record<TransportName, Endpoint>> = {};
  /** Supposed holders of a block; default: all known hosts. */
  holders: (key: Uint8Array) => readonly WorkerId[] = () =>
    this.members.list().map(({ worker }) => worker);
  readonly serving: BlockServer;
  readonly #listenAt: string;

  constructor(options: RealHostOptions) {
    const native = loadNative();
    this.worker = options.worker as WorkerId;
    this.#listenAt = options.listenAt ?? "127.0.0.1";
    this.region = takeRegion(options.arenaBytes);
    this.queue = new Queue(native, { entries: 64, threads: 2, watches: 8 });
    const namespaces = new Namespaces();
    namespaces.indexOf(NAMESPACE_KEY);
    const { region, queue } = this;
    this.store = new TieredStore({
      ...{ native, region, queue, clock: systemClock, namespaces, random: systemRandom },
      ...{ blocksMax: 65_536, gpuWindowBlocks: 0, policy: "lru" },
      marks: { high: 1, low: 1 },
    });
    this.store.slots.addReady(options.arenaBytes);
    this.members = new KnownPeers({ self: this.worker, clock: systemClock });
    this.transports = options.transports.map((name) => makeTransport(name, options));
    const hasRdmaNic = options.transports.includes("rdma");
    const hardware = { hasRdmaNic, rdmaDevices: [], cores: 2, hasAes: true };
    const self = { worker: this.worker, incarnation: 1n, hardware };
    this.serving = new BlockServer({
      blocks: this.store.peerBlocks,
      namespaceOf: (key) => (toHex(key) === toHex(NAMESPACE_KEY) ? NAMESPACE : null),
      modelOf: () => "test/model",
      hello: () => self,
      ...{ limits: SERVE_LIMITS, clock: systemClock, random: systemRandom, log: () => undefined },
    });
    this.server = options.wrap?.(this.serving, region) ?? this.serving;
    this.puller = new Fetcher({
      ...{ self, blocks: this.store.peerBlocks, transports: this.transports, namespaces },
      ...{ members: this.members, locator: null, clock: systemClock, random: systemRandom },
      blockHolders: {
        holders: (_, keys, at) => this.holders(keys.subarray(at, at + 32)),
        wasWrong: () => undefined,
      },
      deriveKeys: (digests, layer) => blockKeys(native, digests, layer),
      tokensPerBlock: () => null,
      log: () => undefined,
      onEvent: (event) => void this.events.push(event),
      limits: { ...PULL_LIMITS, ...options.limits },
    });
    this.store.setPeers(this.puller);
  }

  /** Listens with every transport. */
  async listen(): Promise<this> {
    for (const transport of this.transports) {
      await transport.register(this.region);
      const endpoint = { host: this.#listenAt, port: 0 };
      this.endpoints[transport.name] = await transport.listen(endpoint, this.server);
    }
    return this;
  }

  /** Adds these hosts to the known ones. */
  meet(hosts: readonly { worker: WorkerId; endpoints: RealHost["endpoints"] }[]): void {
    this.members.setListed(hosts);
  }

  /** An engine that checks the complete store at every step only if `looks`. */
  engine(looks = false): StoreEngine {
    const holder = this.store.openEngineSession({ namespace: NAMESPACE, handlesMax: 10_000 });
    const { store } = this;
    const unverified = () => undefined;
    return looks
      ? new StoreEngine(store, this.region, holder)
      : new StoreEngine(store, this.region, holder, unverified);
  }

  /** Anything left over once all is idle; empty if all is well. */
  leftovers(): string[] {
    verifyStore(this.store);
    const { inFlightBytes, waiting } = this.puller.stats;
    const { slotsUsed, slotsQuarantined, ramBlocks } = this.store.snapshot();
    const { lentBlocks, openPulls } = this.serving.stats;
    const counts = {
      ...{ inFlightBytes, waiting, slotsQuarantined, lentBlocks, openPulls },
      slotsLost: slotsUsed - ramBlocks,
    };
    return Object.entries(counts).flatMap(([what, count]) =>
      count === 0 ? [] : [`${this.worker}: ${what} ${count}`],
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.store.setPeers(null);
    await this.puller[Symbol.asyncDispose]();
    this.serving[Symbol.dispose]();
    for (const transport of this.transports) await transport[Symbol.asyncDispose]();
    this.members[Symbol.dispose]();
    await this.store[Symbol.asyncDispose]();
    await this.queue[Symbol.asyncDispose]();
    freeRegions.push(this.region);
  }
}

/** Regions of ended hosts. Regions are never unmapped while views of them may exist. */
const freeRegions: Region[] = [];

function takeRegion(bytes: number): Region {
  const free = freeRegions.findIndex((region) => region.bytes === bytes);
  if (free >= 0) return freeRegions.splice(free, 1)[0]!;
  return Region.create(loadNative(), { bytes, hugePages: "off", lockMemory: "off" });
}

function makeTransport(name: TransportName, options: RealHostOptions): Transport {
  const { trust, lanesPort, makers } = options;
  const native = loadNative();
  const common = { trust, clock: systemClock, log: () => undefined };
  const maker = makers?.[name];
  if (maker !== undefined) {
    return maker.make({ ...common, random: systemRandom, native, limits: LIMITS });
  }
  if (name === "quic") return new QuicTransport({ ...common, native });
  if (name !== "stream") throw new Error(`no transport ${name} here`);
  return new StreamTransport({
    ...{ ...common, lanes: 2, lanesPort: 0 },
    ciphers: ["aegis-128l", "aes-128-gcm"],
    openLanes: (region) => {
      const lanes = openLanes(native, { region, threads: 1, socketBytes: 0 });
      return lanesPort === undefined ? lanes : movedLanes(lanes, lanesPort);
    },
  });
}

/** Lanes that report another listening port. */
function movedLanes(lanes: Lanes, lanesPort: (real: number) => number): Lanes {
  return new Proxy(lanes, {
    get(target, name) {
      if (name === "listen")
        return (host: string, port: number) => lanesPort(target.listen(host, port));
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}
