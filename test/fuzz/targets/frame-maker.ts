import { type Random, randomBelow } from "../../../src/core/index.ts";
import { Op } from "../../../src/engine/protocol/index.ts";

const HEADER_BYTES = 16;
const OPS = Object.values(Op);

/** Bytes in front of the items, and of each item, of the requests that have items. */
const SHAPES: Readonly<Record<number, readonly [head: number, item: number]>> = {
  [Op.match]: [8, 32],
  [Op.reserve]: [16, 80],
  [Op.commit]: [0, 24],
  [Op.abort]: [0, 8],
  [Op.acquire]: [16, 32],
  [Op.release]: [0, 8],
  [Op.gpuStored]: [8, 80],
  [Op.gpuEvicted]: [8, 32],
  [Op.alias]: [8, 64],
  [Op.gpuDevices]: [8, 0],
  [Op.gpuRegister]: [0, 112],
  [Op.gpuUnregister]: [0, 8],
  [Op.gpuStore]: [8, 40],
  [Op.gpuLoad]: [8, 40],
  [Op.gpuWarm]: [8, 8],
  [Op.unhold]: [0, 8],
  [Op.announce]: [24, 32],
};

/** Small numbers, zeros and limits: what fields hold that mean something. */
function word(random: Random): number {
  const kind = randomBelow(random, 8);
  if (kind < 4) return 0;
  if (kind < 6) return randomBelow(random, 4);
  return kind === 6 ? 0xffff_ffff : random.u32();
}

function oneOf(random: Random): number {
  return OPS[randomBelow(random, OPS.length)]!;
}

/** One request: its length right for the most part, its body mostly zeros and small numbers. */
function makeRequest(random: Random): Uint8Array {
  const op = randomBelow(random, 16) === 0 ? random.u32() & 0xff : oneOf(random);
  const [head, item] = SHAPES[op] ?? [8 * randomBelow(random, 10), 0];
  const count = item === 0 ? randomBelow(random, 3) : randomBelow(random, 12);
  const slip = randomBelow(random, 12) === 0 ? 8 * (randomBelow(random, 5) - 2) : 0;
  const length = Math.max(HEADER_BYTES, HEADER_BYTES + head + count * item + slip);
  const bytes = new Uint8Array(length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, length, true);
  view.setUint8(4, op);
  view.setUint8(5, randomBelow(random, 6) === 0 ? 2 : 0);
  view.setUint32(8, random.u32(), true);
  view.setUint32(12, count, true);
  for (let at = HEADER_BYTES; at < length; at += 4) view.setUint32(at, word(random), true);
  return bytes;
}

/** A few requests behind each other. */
export function generateRequests(random: Random): Uint8Array {
  const frames = Array.from({ length: 1 + randomBelow(random, 4) }, () => makeRequest(random));
  return new Uint8Array(Buffer.concat(frames));
}
