import { expect } from "bun:test";
import {
  type Cipher,
  LaneError,
  type LaneSession,
  type Lanes,
  type LanesOptions,
  loadNative,
  type OpenLaneSession,
  openLanes,
  Region,
} from "../../src/native/index.ts";

export const MIB = 2 ** 20;
export const HOST = "127.0.0.1";

/** Long enough for a busy host. */
export const HANG_MS = 20_000;

let sessions = 0;

/** A session that no other test uses. */
export function newSession(cipher: Cipher, lanes: number): LaneSession {
  const id = new Uint8Array(16);
  new DataView(id.buffer).setUint32(0, ++sessions);
  const secret = new Uint8Array(32).map((_, i) => (sessions * 31 + i * 7) & 0xff);
  return { id, secret, cipher, lanes };
}

export interface Side extends AsyncDisposable {
  readonly arena: Region;
  readonly lanes: Lanes;
}

/** An arena with lanes. Disposing checks that nothing holds the arena any more. */
export function openSide(options: Partial<LanesOptions> & { bytes?: number } = {}): Side {
  const { bytes = 16 * MIB, ...rest } = options;
  const native = loadNative();
  const arena = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
  const lanes = openLanes(native, { region: arena, threads: 1, socketBytes: 0, ...rest });
  let closing: Promise<void> | null = null;
  const close = async () => {
    await lanes[Symbol.asyncDispose]();
    arena[Symbol.dispose]();
  };
  return {
    arena,
    lanes,
    [Symbol.asyncDispose]() {
      closing ??= close();
      return closing;
    },
  };
}

/** A session between two sides. */
export interface Ends {
  readonly from: Side;
  readonly to: Side;
  readonly sender: OpenLaneSession;
  readonly receiver: OpenLaneSession;
}

export interface Pair extends Ends, AsyncDisposable {}

/** Opens a session from the listening to the dialling side. */
export async function join(
  from: Side,
  to: Side,
  port: number,
  session: LaneSession,
): Promise<Ends> {
  const expected = from.lanes.expect(session, HANG_MS);
  const dialled = to.lanes.dial(session, HOST, port, HANG_MS);
  const [sender, receiver] = await Promise.all([expected, dialled]);
  return { from, to, sender, receiver };
}

/** Two sides in this process with a session between them. `via` is the port of a proxy. */
export async function openPair(
  cipher: Cipher,
  lanes: number,
  options: Partial<LanesOptions> & { bytes?: number } = {},
  via: (port: number) => number | Promise<number> = (port) => port,
): Promise<Pair> {
  const from = openSide(options);
  const to = openSide(options);
  const port = await via(from.lanes.listen(HOST, 0));
  return {
    ...(await join(from, to, port, newSession(cipher, lanes))),
    async [Symbol.asyncDispose]() {
      await to[Symbol.asyncDispose]();
      await from[Symbol.asyncDispose]();
    },
  };
}

/** Moves one block derived from `seed`. Returns whether it arrived unchanged. */
export async function move(ends: Ends, transfer: number, at: number, bytes: number, seed: bigint) {
  const { from, to, sender, receiver } = ends;
  from.arena.fill(at, bytes, seed);
  const received = receiver.receive(transfer, at, bytes);
  const sent = sender.send(transfer, at, bytes);
  expect(await sent).toEqual({ ok: true });
  expect(await received).toEqual({ ok: true, checksum: from.arena.checksum(at, bytes) });
  expect(to.arena.firstWrong(at, bytes, seed)).toBe(null);
}

/** The fault with which a session failed to open. */
export async function faultOf(opening: Promise<OpenLaneSession>): Promise<string> {
  try {
    await opening;
    return "none";
  } catch (error) {
    if (error instanceof LaneError) return error.fault;
    throw error;
  }
}

export async function withSides(use: (from: Side, to: Side, port: number) => Promise<void>) {
  await using from = openSide();
  await using to = openSide();
  await use(from, to, from.lanes.listen(HOST, 0));
}
