import { expect } from "bun:test";
import {
  loadNative,
  openRdma,
  type Rdma,
  type RdmaOptions,
  type RdmaPort,
  type RdmaQueuePair,
  type RdmaQueuePairSettings,
  Region,
} from "../../src/native/index.ts";
import { type StandIn, standIn } from "../support/stand-ins.ts";

export const MIB = 2 ** 20;
export const KIB = 2 ** 10;

/** Long enough for a busy or an emulated host. */
export const HANG_MS = 30_000;

/** Whether HEARTH_TEST_VERBS names a real library, with the devices of this host. */
export const isReal = process.env.HEARTH_TEST_VERBS !== undefined;

let loaded: StandIn | undefined;

/** The stand-in. Only for tests that do not run on real libraries. */
export function fake(): StandIn {
  loaded ??= standIn("libibverbs.so.1");
  return loaded;
}

/** Path of the library under test. The stand-in restarts with `plan`. */
export function verbsLibrary(plan = ""): string {
  const named = process.env.HEARTH_TEST_VERBS;
  if (named !== undefined) return named;
  fake().configure(plan);
  return fake().path;
}

export const SETTINGS: RdmaQueuePairSettings = {
  timeout: 14,
  retries: 6,
  trafficClass: 0,
  serviceLevel: 0,
  pieceBytes: 256 * KIB,
};

export interface Side extends AsyncDisposable {
  readonly arena: Region;
  readonly rdma: Rdma;
  /** Ports passed to `onPort`. */
  readonly reported: RdmaPort[];
}

export interface SideOptions extends Partial<RdmaOptions> {
  readonly bytes?: number;
}

/** An arena with RDMA. Disposing checks that nothing holds the arena any more. */
export function openSide(library: string, options: SideOptions = {}): Side {
  const { bytes = 16 * MIB, ...rest } = options;
  const native = loadNative();
  const arena = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
  const reported: RdmaPort[] = [];
  const rdma = openRdma(native, {
    region: arena,
    library,
    devices: null,
    gidIndex: null,
    windowBytes: bytes,
    windowSpans: 64,
    linksMax: 16,
    readsMax: 256,
    onPort: (port) => reported.push(port),
    ...rest,
  });
  let closing: Promise<void> | null = null;
  const close = async () => {
    await rdma[Symbol.asyncDispose]();
    arena[Symbol.dispose]();
  };
  return {
    arena,
    rdma,
    reported,
    [Symbol.asyncDispose]() {
      closing ??= close();
      return closing;
    },
  };
}

/** The first usable port. */
export function portOf(side: Side): RdmaPort {
  const port = side.rdma.ports().find(({ state }) => state === "active");
  if (port === undefined) throw new Error(`no port is active: ${side.rdma.state}`);
  return port;
}

export interface Pair extends AsyncDisposable {
  readonly owner: Side;
  readonly client: Side;
  readonly lender: RdmaQueuePair;
  readonly reader: RdmaQueuePair;
}

/** A pair of connected queue pairs in this process. */
export function join(
  owner: Side,
  client: Side,
  settings: Partial<RdmaQueuePairSettings> = {},
): Pair {
  const lender = owner.rdma.link(portOf(owner).index, { ...SETTINGS, ...settings });
  const reader = client.rdma.link(portOf(client).index, { ...SETTINGS, ...settings });
  lender.connect(reader.address);
  reader.connect(lender.address);
  return {
    owner,
    client,
    lender,
    reader,
    async [Symbol.asyncDispose]() {
      await client[Symbol.asyncDispose]();
      await owner[Symbol.asyncDispose]();
    },
  };
}

export interface PairOptions extends SideOptions {
  readonly plan?: string;
  readonly settings?: Partial<RdmaQueuePairSettings>;
}

export function openPair({ plan, settings, ...options }: PairOptions = {}): Pair {
  const library = verbsLibrary(plan);
  return join(openSide(library, options), openSide(library, options), settings);
}

/** Lends a block derived from `seed`, reads it, and takes it back. */
export async function move(pair: Pair, at: number, bytes: number, seed: bigint): Promise<void> {
  const { owner, client, lender, reader } = pair;
  owner.arena.fill(at, bytes, seed);
  const loan = lender.lend(at, bytes);
  const lent = await loan.lent;
  if (!lent.ok) throw new Error(`nothing was lent: ${lent.fault}`);
  const { done } = reader.read(lent.window, at, bytes);
  expect(await done).toEqual({ ok: true, checksum: owner.arena.checksum(at, bytes) });
  expect(client.arena.firstWrong(at, bytes, seed)).toBe(null);
  await lender.takeBack(loan.token);
}

/** Everything that the stand-in has open. */
export function openThings(): Record<string, number> {
  const all = Object.entries(fake().counters());
  return Object.fromEntries(all.filter(([name, count]) => name.startsWith("open.") && count > 0));
}
