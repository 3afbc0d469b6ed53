import { type Random, randomBelow } from "../../src/core/index.ts";
import {
  decodeHeader,
  encodeHeader,
  HEADER_BYTES,
  type KvbHeader,
} from "../../src/store/kvb/index.ts";

export interface DamageInput {
  /** A sound file; not to be changed. */
  readonly file: Uint8Array;
  /** A sound file of another block of the same layer. */
  readonly other: Uint8Array;
  readonly random: Random;
}

interface DamageKind {
  /** The file as it is afterwards; null: it is gone. */
  readonly apply: (input: DamageInput) => Uint8Array | null;
  /** The payload is what it was: the right bytes may be served. */
  readonly isHarmless?: true;
}

const SECTOR_BYTES = 512;
const PAGE_BYTES = 4096;

function headerOf(file: Uint8Array): KvbHeader {
  const decoded = decodeHeader(file.subarray(0, HEADER_BYTES));
  if (!decoded.ok) throw new Error(`no sound file to damage: ${decoded.why}`);
  return decoded.header;
}

/** End of what checksums cover. */
function payloadEnd(file: Uint8Array): number {
  return HEADER_BYTES + headerOf(file).payloadBytes;
}

/** A whole number in [from, to). */
function between(random: Random, from: number, to: number): number {
  return from + randomBelow(random, to - from);
}

function noise(random: Random, bytes: number): Uint8Array {
  return Uint8Array.from({ length: bytes }, () => random.u32());
}

function flipped(file: Uint8Array, random: Random, from: number, to: number): Uint8Array {
  const copy = file.slice();
  copy[between(random, from, to)]! ^= 1 << randomBelow(random, 8);
  return copy;
}

/** Overwrites units of `unitBytes`, the first of them one that holds something checksums cover. */
function overwritten(
  { file, random }: DamageInput,
  unitBytes: number,
  fill: (bytes: number) => Uint8Array,
): Uint8Array {
  const copy = file.slice();
  const unit = randomBelow(random, Math.ceil(payloadEnd(file) / unitBytes));
  const left = Math.ceil((file.length - unit * unitBytes) / unitBytes);
  const units = 1 + randomBelow(random, Math.min(4, left));
  copy.set(fill(units * unitBytes).subarray(0, file.length - unit * unitBytes), unit * unitBytes);
  return copy;
}

/** A sound file with another header and payload. */
function remade(file: Uint8Array, change: Partial<KvbHeader>, payload: Uint8Array): Uint8Array {
  const copy = new Uint8Array(file.length);
  const payloadChecksum = Bun.hash.xxHash3(payload);
  encodeHeader({ ...headerOf(file), ...change, payloadChecksum }, copy.subarray(0, HEADER_BYTES));
  copy.set(payload, HEADER_BYTES);
  return copy;
}

/** What happens to block files. Swapping two is not here: it takes both at once. */
export const DAMAGES = {
  header_bit: {
    apply: ({ file, random }) => flipped(file, random, 0, HEADER_BYTES),
  },
  header_field_bit: {
    apply: ({ file, random }) => flipped(file, random, 0, 160),
  },
  payload_bit: {
    apply: ({ file, random }) => flipped(file, random, HEADER_BYTES, payloadEnd(file)),
  },
  sectors_of_noise: {
    apply: (input) => overwritten(input, SECTOR_BYTES, (bytes) => noise(input.random, bytes)),
  },
  zeroed_pages: {
    apply: (input) => overwritten(input, PAGE_BYTES, (bytes) => new Uint8Array(bytes)),
  },
  sectors_of_another_file: {
    apply(input) {
      const { other, random } = input;
      const from = HEADER_BYTES + SECTOR_BYTES * randomBelow(random, 2);
      const sectors = new Uint8Array(4 * SECTOR_BYTES);
      sectors.set(other.subarray(from, from + sectors.length));
      return overwritten(input, SECTOR_BYTES, () => sectors);
    },
  },
  half_written: {
    apply({ file, random }) {
      const copy = file.slice();
      copy.fill(0, SECTOR_BYTES * randomBelow(random, Math.ceil(payloadEnd(file) / SECTOR_BYTES)));
      return copy;
    },
  },
  truncated: {
    apply: ({ file, random }) => file.slice(0, randomBelow(random, file.length)),
  },
  extended: {
    apply({ file, random }) {
      const more = between(random, 1, 3 * PAGE_BYTES);
      const copy = new Uint8Array(file.length + more);
      copy.set(file);
      if (randomBelow(random, 2) === 0) copy.set(noise(random, more), file.length);
      return copy;
    },
  },
  gone: {
    apply: () => null,
  },
  another_block: {
    apply: ({ other }) => other,
  },
  stale_generation: {
    apply({ file, random }) {
      const { payloadBytes, sequence, writtenMs } = headerOf(file);
      const earlier = { sequence: Math.max(0, sequence - 1), writtenMs: writtenMs - 60_000 };
      return remade(file, earlier, noise(random, payloadBytes));
    },
  },
  stale_payload: {
    // The header is of the present, the payload of an earlier day.
    apply({ file, random }) {
      const copy = file.slice();
      copy.set(noise(random, headerOf(file).payloadBytes), HEADER_BYTES);
      return copy;
    },
  },
  another_namespace: {
    apply({ file, random }) {
      const { payloadBytes } = headerOf(file);
      return remade(file, { namespaceKey: noise(random, 32) }, noise(random, payloadBytes));
    },
  },
  namespace_changed: {
    // The same bytes under another tenant's name.
    apply({ file, random }) {
      const payload = file.slice(HEADER_BYTES, payloadEnd(file));
      return remade(file, { namespaceKey: noise(random, 32) }, payload);
    },
  },
  another_layer: {
    apply({ file, random }) {
      const { layer } = headerOf(file);
      const payload = file.slice(HEADER_BYTES, payloadEnd(file));
      return remade(file, { layer: (layer ^ between(random, 1, 64)) >>> 0 }, payload);
    },
  },
  shorter_payload: {
    // A sound file that says the block is shorter.
    apply({ file, random }) {
      const { payloadBytes } = headerOf(file);
      const bytes = between(random, Math.max(1, payloadBytes - 500), payloadBytes);
      return remade(file, { payloadBytes: bytes }, file.slice(HEADER_BYTES, HEADER_BYTES + bytes));
    },
  },
  padding_bit: {
    isHarmless: true,
    apply({ file, random }) {
      const end = payloadEnd(file);
      return end === file.length ? file.slice() : flipped(file, random, end, file.length);
    },
  },
} as const satisfies Record<string, DamageKind>;

export type DamageName = keyof typeof DAMAGES;

export const DAMAGE_NAMES = Object.keys(DAMAGES) as DamageName[];

export function isHarmless(name: DamageName): boolean {
  return (DAMAGES[name] as DamageKind).isHarmless === true;
}

/** Of `sectors_of_noise` and the like: the file is, by chance, as it was. */
export function isUnchanged(before: Uint8Array, after: Uint8Array | null): boolean {
  if (after === null || before.length !== after.length) return false;
  const end = payloadEnd(before);
  return Buffer.compare(before.subarray(0, end), after.subarray(0, end)) === 0;
}
