import { expect } from "bun:test";
import { type Clock, type Random, systemClock, systemRandom } from "../../../src/core/index.ts";
import { loadNative, type Native, type Region } from "../../../src/native/index.ts";
import type {
  ConnectionFault,
  Endpoint,
  ItemResult,
  Landed,
  PeerConnection,
  PullItem,
  Transport,
  TransportLog,
  Trust,
} from "../../../src/peers/index.ts";
import { makeCluster, type TestCluster } from "../../support/cluster.ts";
import { PATIENCE } from "../../support/patience.ts";
import { NAMESPACE, RegionServer, testRegion } from "../../support/region-server.ts";

/** Limits that every transport has, small enough for tests. */
export interface ContractLimits {
  /** Maximum inbound connections. */
  readonly linksMax: number;
  /** Maximum concurrent requests of one peer. */
  readonly requestsMax: number;
  /** Time without data after which a request ends. */
  readonly progressMs: number;
  /** Handshake timeout. */
  readonly handshakeMs: number;
}

export interface TransportParts {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly random: Random;
  readonly native: Native;
  readonly log: TransportLog;
  readonly limits: ContractLimits;
}

/** The export `maker` of a file for which the contract suite runs. */
export interface TransportMaker {
  readonly name: string;
  make(parts: TransportParts): Transport;
}

export const LIMITS: ContractLimits = {
  linksMax: 8,
  requestsMax: 32,
  progressMs: 1_500 * PATIENCE,
  handshakeMs: 2_000 * PATIENCE,
};

export const MIB = 2 ** 20;
export const REGION_BYTES = 64 * MIB;
/** Fills memory that must not be written. */
const CANARY = 0xcafe_f00dn;

export interface LogLine {
  readonly level: string;
  readonly text: string;
  readonly fields: Readonly<Record<string, string | number | boolean>>;
}

/** One host: a transport with its own region, credentials and server. */
export class Host implements AsyncDisposable {
  readonly transport: Transport;
  readonly region: Region;
  readonly server: RegionServer;
  readonly log: LogLine[] = [];
  #endpoint: Endpoint | null = null;

  constructor(maker: TransportMaker, trust: Trust, region: Region, limits: ContractLimits) {
    this.region = region;
    this.server = new RegionServer(region);
    this.transport = maker.make({
      trust,
      clock: systemClock,
      random: systemRandom,
      native: loadNative(),
      log: (level, text, fields) => void this.log.push({ level, text, fields }),
      limits,
    });
  }

  async listen(): Promise<Endpoint> {
    await this.transport.register(this.region);
    this.#endpoint = await this.transport.listen({ host: "127.0.0.1", port: 0 }, this.server);
    return this.#endpoint;
  }

  get endpoint(): Endpoint {
    return this.#endpoint!;
  }

  [Symbol.asyncDispose](): PromiseLike<void> {
    return this.transport[Symbol.asyncDispose]();
  }
}

/** Regions are reused: they are never unmapped while views of them may exist. */
const regions: Region[] = [];
export function regionOf(index: number): Region {
  regions[index] ??= testRegion(REGION_BYTES);
  return regions[index];
}

/** Two hosts of one cluster; `client` pulls from `serverHost`. */
export class Pair implements AsyncDisposable {
  readonly maker: TransportMaker;
  readonly cluster: TestCluster;
  readonly serverHost: Host;
  readonly client: Host;

  private constructor(maker: TransportMaker, limits: Partial<ContractLimits>) {
    const all = { ...LIMITS, ...limits };
    this.maker = maker;
    this.cluster = makeCluster();
    this.serverHost = new Host(maker, this.cluster.trust("server"), regionOf(0), all);
    this.client = new Host(maker, this.cluster.trust("client"), regionOf(1), all);
  }

  static async make(maker: TransportMaker, limits: Partial<ContractLimits> = {}): Promise<Pair> {
    const pair = new Pair(maker, limits);
    await pair.serverHost.listen();
    await pair.client.listen();
    return pair;
  }

  connection(): Promise<PeerConnection> {
    return dial(this.client, this.serverHost.endpoint, "server");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client[Symbol.asyncDispose]();
    await this.serverHost[Symbol.asyncDispose]();
    const { lent, serving, releasedTwice } = this.serverHost.server;
    expect({ lent, serving, releasedTwice }).toEqual({ lent: 0, serving: 0, releasedTwice: 0 });
  }
}

export function tryDial(host: Host, to: Endpoint, worker: string, signal?: AbortSignal) {
  const target = { ...to, worker: worker as never };
  return host.transport.dial(target, signal ?? new AbortController().signal);
}

/** A connection; fails the test if there is none. */
export async function dial(host: Host, to: Endpoint, worker: string): Promise<PeerConnection> {
  const dialled = await tryDial(host, to, worker);
  if (!dialled.ok) throw new Error(`not dialled: ${dialled.fault.kind}: ${dialled.fault.why}`);
  return dialled.connection;
}

/** Consecutive places for items, each followed by a page of canary. */
export function placesFor(items: readonly PullItem[]): Landed[] {
  let at = 0;
  return items.map((item) => {
    const offset = at;
    at = offset + Math.ceil(item.bytesMax / 4096) * 4096 + 4096;
    return { ...item, offset };
  });
}

/** Fills the places and the gaps between them with the canary. */
export function chalk(region: Region, places: readonly Landed[]): void {
  const last = places.at(-1)!;
  region.fill(0, last.offset + Math.ceil(last.bytesMax / 4096) * 4096 + 4096, CANARY);
}

/** Whether these bytes are as `chalk` left them. */
function untouched(region: Region, from: number, to: number): boolean {
  const view = region.view(to).bytes;
  const fresh = chalkBytes(to);
  return Buffer.compare(view.subarray(from, to), fresh.subarray(from, to)) === 0;
}

let chalkRegion: Region | undefined;
function chalkBytes(bytes: number): Uint8Array {
  if (chalkRegion === undefined) {
    chalkRegion = testRegion(REGION_BYTES);
    chalkRegion.fill(0, REGION_BYTES, CANARY);
  }
  return chalkRegion.view(bytes).bytes;
}

export interface PullOutcome {
  readonly fault: ConnectionFault | null;
  readonly results: readonly (ItemResult | undefined)[];
  /** Reported bytes per item. */
  readonly told: readonly number[];
}

export interface PullOptions {
  readonly signal?: AbortSignal;
  readonly deadlineMs?: number;
  readonly namespace?: Uint8Array;
  onBytes?(index: number, bytes: number): void;
}

/** Pulls, and fails the test if an item is answered twice or after the end. */
export async function pullPlaces(
  connection: PeerConnection,
  items: readonly Landed[],
  options: PullOptions = {},
): Promise<PullOutcome> {
  const results: (ItemResult | undefined)[] = items.map(() => undefined);
  const told = items.map(() => 0);
  let isOver = false;
  const fault = await connection.pull({
    namespace: options.namespace ?? NAMESPACE,
    items,
    deadlineMs: options.deadlineMs ?? 30_000,
    signal: options.signal ?? new AbortController().signal,
    onBytes(index, bytes) {
      expect(isOver).toBe(false);
      told[index]! += bytes;
      options.onBytes?.(index, bytes);
    },
    onItem(index, result) {
      expect(isOver).toBe(false);
      expect(results[index]).toBeUndefined();
      results[index] = result;
    },
  });
  isOver = true;
  return { fault, results, told };
}

/**
 * Fills the places with the canary, pulls into them, and verifies each byte of the blocks and of
 * the gaps.
 */
export async function pullAndProve(
  host: Host,
  connection: PeerConnection,
  seeds: readonly number[],
  items: readonly PullItem[],
  server: RegionServer,
): Promise<PullOutcome> {
  const { region } = host;
  const places = placesFor(items);
  chalk(region, places);
  const outcome = await pullPlaces(connection, places);
  expect(outcome.fault).toBeNull();
  for (const [index, { offset, bytesMax }] of places.entries()) {
    const result = outcome.results[index]!;
    if (result.kind !== "came") throw new Error(`item ${index}: ${result.kind}`);
    const { bytes } = result.header;
    expect(region.firstWrong(offset, bytes, BigInt(seeds[index]!))).toBeNull();
    expect(result.checksum).toBe(region.checksum(offset, bytes));
    expect(result.header).toEqual(server.header(seeds[index]!));
    expect(outcome.told[index]).toBe(bytes);
    const behind = offset + Math.ceil(bytesMax / 4096) * 4096;
    expect(untouched(region, offset + bytes, behind + 4096)).toBe(true);
  }
  return outcome;
}

/** Whether a place and its surroundings are unwritten. */
export function untouchedPlace(region: Region, { offset, bytesMax }: Landed): boolean {
  return untouched(region, offset, offset + Math.ceil(bytesMax / 4096) * 4096 + 4096);
}
