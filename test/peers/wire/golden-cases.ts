import { readdirSync, readFileSync } from "node:fs";
import type { WorkerId } from "../../../src/core/index.ts";
import type { FrameHeader, PeerAnswer, PeerHello, PeerRequest } from "../../../src/peers/index.ts";
import { encodeAnswer, encodeRequest, type Part } from "../../../src/peers/wire/index.ts";
import { encodePart, type READERS } from "./arbitrary.ts";

export interface GoldenCase {
  /** File in `golden/`, without its extension. */
  readonly name: string;
  readonly reader: keyof typeof READERS;
  readonly value: unknown;
  readonly bytes: Uint8Array;
}

const FOLDER = new URL("golden/", import.meta.url);

export function goldenNames(): string[] {
  const files = readdirSync(FOLDER).filter((file) => file.endsWith(".hex"));
  return files.map((file) => file.replace(/\.hex$/, "")).sort();
}

/** The file's text: hex with a comment for each field. */
export function goldenText(name: string): string {
  return readFileSync(new URL(`${name}.hex`, FOLDER), "utf8");
}

export function goldenBytes(name: string): Uint8Array {
  return Uint8Array.fromHex(goldenText(name).replace(/#.*$/gm, "").replace(/\s+/g, ""));
}

/** This many bytes, counting up. */
export function sequence(first: number, bytes = 32): Uint8Array {
  return Uint8Array.from({ length: bytes }, (_, i) => first + i);
}

const NAMESPACE = sequence(0xc0);
const DIGEST = sequence(0x20);
const PARENT = sequence(0x00);
const PAGE_KEY = sequence(0x80);
const ENGINE_HASH = Uint8Array.fromHex("efcdab8967452301");
const LAYER_ALL = 0xffff_ffff;
const CHECKSUM = 0xfedc_ba98_7654_3210n;
const WHY = "not served here";

export const HELLO: PeerHello = {
  worker: "gpu-01" as WorkerId,
  incarnation: 0x0123_4567_89ab_cdefn,
  hardware: { hasRdmaNic: true, rdmaDevices: ["mlx5_0", "mlx5_1"], cores: 64, hasAes: true },
};

export const PULL: Extract<PeerRequest, { op: "pull" }> = {
  op: "pull",
  namespace: NAMESPACE,
  deadlineMs: 1_500,
  items: [
    { digest: DIGEST, layer: LAYER_ALL, bytesMax: 4_194_304, generation: 7n },
    { digest: PARENT, layer: 3, bytesMax: 2 ** 32 - 1, generation: 0n },
  ],
};

export const PLAIN_FRAME: FrameHeader = {
  digest: DIGEST,
  layer: 2,
  model: "",
  bytes: 4_194_304,
  namespace: NAMESPACE,
  generation: 7n,
  checksum: CHECKSUM,
  mac: null,
  parent: null,
  transient: false,
  aliases: [],
};

export const FRAME: FrameHeader = {
  ...PLAIN_FRAME,
  model: "llama-3-8b",
  parent: PARENT,
  transient: true,
  aliases: [ENGINE_HASH, PAGE_KEY],
  mac: sequence(0x70).subarray(0, 16),
};

const REQUESTS: Readonly<Record<string, PeerRequest>> = {
  hello: { op: "hello", hello: HELLO },
  pull: PULL,
  has: { op: "has", namespace: NAMESPACE, blocks: [{ digest: DIGEST, layer: LAYER_ALL }] },
  find: { op: "find", names: [ENGINE_HASH, PAGE_KEY] },
  summary: { op: "summary", namespace: NAMESPACE, known: 5n },
};

const HAS = { tiers: 6, bytes: 4_194_304, generation: 2n ** 64n - 1n, checksum: CHECKSUM };
const NOT_HERE = { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };
const FOUND = { tiers: 4, bytes: 65_536, generation: 9n, checksum: 1n };

const ANSWERS: Readonly<Record<string, PeerAnswer>> = {
  hello: { op: "hello", hello: HELLO },
  has: { op: "has", blocks: [HAS, NOT_HERE] },
  find: {
    op: "find",
    found: [[{ namespace: NAMESPACE, digest: DIGEST, layer: 0, ...FOUND }], []],
  },
  summary: { op: "summary", version: 6n, filter: sequence(1, 5) },
  "summary-same": { op: "summary", version: 5n, filter: null },
  busy: { op: "busy", retryAfterMs: 250 },
  refused: { op: "refused", why: WHY },
};

const PARTS: Readonly<Record<string, Part>> = {
  frame: { kind: "frame", index: 1, header: FRAME },
  "frame-plain": { kind: "frame", index: 0, header: PLAIN_FRAME },
  absent: { kind: "refusal", index: 0, refusal: { kind: "absent" } },
  busy: { kind: "refusal", index: 1, refusal: { kind: "busy", retryAfterMs: 40 } },
  "too-long": { kind: "refusal", index: 2, refusal: { kind: "tooLong", bytes: 8_388_608 } },
  refused: { kind: "refusal", index: 3, refusal: { kind: "refused", why: WHY } },
};

function casesOf<T>(
  reader: keyof typeof READERS,
  values: Readonly<Record<string, T>>,
  encode: (value: T) => Uint8Array,
): GoldenCase[] {
  return Object.entries(values).map(([name, value]) => {
    return { name: `${name}.${reader}`, reader, value, bytes: encode(value) };
  });
}

/** One case per file; `bytes` is the encoding of `value`. */
export const CASES: readonly GoldenCase[] = [
  ...casesOf("request", REQUESTS, encodeRequest),
  ...casesOf("answer", ANSWERS, encodeAnswer),
  ...casesOf("part", PARTS, encodePart),
];
