import {
  encodeHeader,
  fileBytesOf,
  HEADER_BYTES,
  type KvbHeader,
} from "../../../src/store/kvb/index.ts";

/** Bytes `first`, `first + 1`, ...: easy to find in a dump. */
function counting(first: number): Uint8Array {
  return Uint8Array.from({ length: 32 }, (_, i) => first + i);
}

export interface GoldenCase {
  readonly what: string;
  /** Below `golden/`, as below an SSD folder. */
  readonly path: string;
  readonly variant: number;
  readonly header: Omit<KvbHeader, "payloadChecksum">;
}

const namespaceKey = counting(0xc0);

export const GOLDEN_CASES: readonly GoldenCase[] = [
  {
    what: "the first block of a prompt, all layers, one page",
    path: "12/12caa8cbe55b1dd9-all.kvb",
    variant: 0,
    header: {
      digest: counting(0x00),
      layer: 0xffff_ffff,
      parent: null,
      namespaceKey,
      payloadBytes: 4096,
      mac: null,
      incarnation: 1n,
      sequence: 1,
      writtenMs: 1_790_000_000_000,
    },
  },
  {
    what: "its child, all layers, a payload that is padded",
    path: "dd/dd03ed85feccec1b-all.kvb",
    variant: 0,
    header: {
      digest: counting(0x20),
      layer: 0xffff_ffff,
      parent: counting(0x00),
      namespaceKey,
      payloadBytes: 5000,
      mac: null,
      incarnation: 1n,
      sequence: 2,
      writtenMs: 1_790_000_000_001,
    },
  },
  {
    what: "one layer, one byte, the second file of its short name",
    path: "17/17aa1c8405d76979-3.1.kvb",
    variant: 1,
    header: {
      digest: counting(0x40),
      layer: 3,
      parent: counting(0x20),
      namespaceKey,
      payloadBytes: 1,
      mac: null,
      incarnation: 0xfedc_ba98_7654_3210n,
      sequence: 4_294_967_296,
      writtenMs: 1_790_000_000_002,
    },
  },
  {
    what: "layer 0, the largest numbers",
    path: "27/27e6f5506f0766cf-0.kvb",
    variant: 0,
    header: {
      digest: counting(0x60),
      layer: 0,
      parent: counting(0x40),
      namespaceKey,
      payloadBytes: 8192,
      mac: null,
      incarnation: 0xffff_ffff_ffff_ffffn,
      sequence: Number.MAX_SAFE_INTEGER,
      writtenMs: Number.MAX_SAFE_INTEGER,
    },
  },
  {
    what: "a block with a MAC: format version 2",
    path: "c9/c91b78758f0b62a0-all.kvb",
    variant: 0,
    header: {
      digest: counting(0x80),
      layer: 0xffff_ffff,
      parent: counting(0x60),
      namespaceKey,
      payloadBytes: 4096,
      mac: counting(0xa0).subarray(0, 16),
      incarnation: 2n,
      sequence: 5,
      writtenMs: 1_790_000_000_003,
    },
  },
];

/** Byte i of a payload: (i * 7 + first byte of the digest) mod 251. */
export function goldenPayload({ digest, payloadBytes }: GoldenCase["header"]): Uint8Array {
  return Uint8Array.from({ length: payloadBytes }, (_, i) => (i * 7 + digest[0]!) % 251);
}

export function goldenFile({ header }: GoldenCase): Uint8Array {
  const payload = goldenPayload(header);
  const file = new Uint8Array(fileBytesOf(header.payloadBytes));
  const payloadChecksum = Bun.hash.xxHash3(payload);
  encodeHeader({ ...header, payloadChecksum }, file.subarray(0, HEADER_BYTES));
  file.set(payload, HEADER_BYTES);
  return file;
}
