import {
  blocksOf,
  COMMAND_LIMITS,
  COMMAND_TYPES,
  type Command,
  decodeCommand,
  encodeBody,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  REFUSALS,
} from "../../../src/control/index.ts";
import { type Random, randomBelow, stringifyJson } from "../../../src/core/index.ts";
import { must, type Saw, shapeOf, type Target } from "../target.ts";
import { bytesOf, digits, oneOf } from "./text-input.ts";

const KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const HASHES = [
  0,
  111,
  -1,
  2 ** 53 - 1,
  2n ** 53n,
  -(2n ** 63n),
  2n ** 64n - 1n,
  1.5,
  KEY,
  `${KEY}/7`,
  "123",
  "abc123...",
];
const NAMES = ["router-1", "é", "", "\n", "\u202e", "x".repeat(128), "x".repeat(129), 5, null];
const OTHER_KEYS = ["constructor", "prototype", "toString", "hasOwnProperty", "length", ""];

function list(random: Random): unknown[] {
  return Array.from({ length: randomBelow(random, 6) }, () => oneOf(HASHES, random));
}

/** A command, or nearly one. */
function command(random: Random): Record<string, unknown> {
  const type = oneOf(COMMAND_TYPES, random);
  const body: Record<string, unknown> = { type };
  const add = (members: Readonly<Record<string, unknown>>) => {
    for (const [key, value] of Object.entries(members)) {
      if (randomBelow(random, 10) > 0) body[key] = value;
    }
  };
  if (["Cache", "Think", "Pause", "Warm"].includes(type)) add({ block_hashes: list(random) });
  if (type === "Warm") {
    add({ target_tier: oneOf(["GPU", "CPU_TIER1", "x", null], random), sources: ["w2"] });
  }
  if (type === "Prune") add({ after_block_hash: oneOf(HASHES, random) });
  if (type === "Cache")
    add(oneOf([{ pin: true, ttl_seconds: 5 }, { pin: false }, { retain: 9 }], random));
  if (type === "Think") add({ transient: random.u32() % 2 === 0 });
  if (type !== "Prune" && type !== "Flush") {
    add({ lease_id: "session-abc", ttl_seconds: oneOf([null, 3600, 0.5, 1e300], random) });
    add({ new_ttl_seconds: 7200 });
  }
  if (random.u32() % 2 === 0) {
    const number = BigInt(digits(1 + randomBelow(random, 20), random));
    add({ id: oneOf(NAMES, random), issuer: oneOf(NAMES, random), epoch: number, seq: number });
    add({ not_after: 1_750_000_000.5, owner: oneOf(NAMES, random) });
  }
  if (random.u32() % 4 === 0) body[oneOf(OTHER_KEYS, random)] = nested(random);
  return body;
}

function nested(random: Random): unknown {
  let value: unknown = 1;
  for (let depth = randomBelow(random, 20); depth > 0; depth--) {
    value = random.u32() % 2 === 0 ? [value] : { a: value };
  }
  return value;
}

/** What holds of every command that is taken. */
function checkCommand(taken: Command): void {
  must(blocksOf(taken) <= COMMAND_LIMITS.blocksMax, "blocks are bounded");
  for (const name of [taken.id, taken.issuer, taken.owner]) {
    if (name === null) continue;
    must(name.length > 0 && Buffer.byteLength(name) <= 128, "names are bounded");
    must(/^[^\p{C}]+$/u.test(name), "names can be printed");
  }
  for (const number of [taken.epoch, taken.seq]) {
    must(number === null || (number >= 0n && number < 2n ** 64n), "numbers have 64 bits");
  }
  must(taken.notAfterS === null || Number.isFinite(taken.notAfterS), "a time is finite");
  if ("ttlMs" in taken && taken.ttlMs !== null) {
    must(Number.isSafeInteger(taken.ttlMs) && taken.ttlMs > 0, "a duration can be added to");
  }
  if (!("blocks" in taken)) return;
  for (const name of taken.blocks) {
    if (name.kind === "key") must(name.bytes.length === 32, "a key has 32 bytes");
    else must(name.lo >>> 0 === name.lo && name.hi >>> 0 === name.hi, "a hash has two words");
  }
}

function run(input: Uint8Array, type: MediaType, saw: Saw): void {
  const decoded = decodeCommand(input, type);
  must(({} as { type?: unknown }).type === undefined, "no prototype was written to");
  if (!decoded.ok) {
    const { code, message } = decoded.refusal;
    must(code in REFUSALS, "refusals have a known code");
    must(message.length < 400 && /^[^\p{Cc}]+$/u.test(message), "the message is one line");
    saw(`${code} ${shapeOf(message)}`.slice(0, 40));
    return;
  }
  const { command: taken, unnamed } = decoded;
  saw(`${taken.type} ${unnamed.length > 0} ${taken.id === null}`);
  checkCommand(taken);
  const places = unnamed.map(({ at }) => at);
  must(
    places.every((at, i) => i === 0 || at > places[i - 1]!),
    "places ascend",
  );
  must((places.at(-1) ?? -1) < blocksOf(taken) + places.length, "places are in the list");
  // What goes into receipts and logs can be written.
  stringifyJson(unnamed);
}

const SEEDS = [
  '{"type": "Warm", "block_keys": ["abc123...", "def456..."], "target_tier": "CPU_TIER1"}',
  '{"type": "Prune", "after_block_hash": 1234567890}',
  '{"type": "Cache", "block_hashes": [111, -222, 18446744073709551615], "pin": true}',
  '{"type": "Pause", "block_hashes": [666], "ttl_seconds": null, "lease_id": "session-abc"}',
  '{"type":"RenewLease","lease_id":"x","new_ttl_seconds":18446744073709551615,"epoch":1,"seq":2}',
  '{"__proto__":{"type":"Flush"},"constructor":{"prototype":{"type":"Flush"}},"type":"Flush"}',
  '{"type":"Flush","type":"RevokeLease","lease_id":"a","lease_id":"b"}',
  `{"type":"Flush","x":${"[".repeat(40)}${"]".repeat(40)}}`,
  `{"type":"Flush","x":${"[".repeat(20_000)}`,
  `{"type":"Prune","after_block_hash":${"9".repeat(5_000)}}`,
  '{"type":"Flush","not_after":-1e400}',
];

/** Seeds that no encoder makes. */
const PACKED = [
  "ddffffffff",
  "81a474797065dbffffffff",
  "81a95f5f70726f746f5f5f81a474797065a5466c757368",
  "82a474797065a5466c757368a178d6ff00000000",
  "82a474797065a5466c757368a178c70c05000102030405060708090a0b",
  "82a474797065a5466c757368a16991c1",
  "82a474797065a5466c757368cf0000000000000001c0",
  "82a474797065a5466c757368a269 64a2fffe",
  `82a474797065a5466c757368a178${"91".repeat(64)}c0`,
  "dcffff".repeat(200),
].map((hex) => Uint8Array.fromHex(hex.replaceAll(" ", "")));

/** Commands as JSON. */
export function jsonCommands(): Target {
  return {
    name: "commands",
    corpus: [...SEEDS.map(bytesOf), bytesOf('{"type":"RevokeLease","lease_id":"\xff\xfe"}')],
    inputBytesMax: 128 * 1024,
    generate: (random) => encodeBody(command(random), JSON_TYPE),
    run: (input, saw) => run(input, JSON_TYPE, saw),
  };
}

/** Commands as MessagePack. */
export function packedCommands(): Target {
  return {
    name: "packed-commands",
    corpus: [
      ...PACKED,
      encodeBody({ type: "Warm", block_keys: [new Uint8Array(32)], sources: [] }, MSGPACK_TYPE),
      encodeBody(
        { type: "Cache", block_hashes: [-1n, 2n ** 64n - 1n, 5], pin: true },
        MSGPACK_TYPE,
      ),
    ],
    inputBytesMax: 128 * 1024,
    generate: (random) => encodeBody(command(random), MSGPACK_TYPE),
    run: (input, saw) => run(input, MSGPACK_TYPE, saw),
  };
}
