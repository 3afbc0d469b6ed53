import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import {
  COMMAND_LIMITS,
  COMMAND_TYPES,
  type Command,
  type DecodedCommand,
  decodeCommand,
  decodeReceipt,
  encodeBody,
  encodeReceipt,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  type Receipt,
  signCommand,
  signedBytes,
} from "../../src/control/index.ts";
import { type BlockName, parseJson, publicUserKey, userOfSeed } from "../../src/core/index.ts";

const HEAD = { worker_id: "w", incarnation: "18446744073709551615", issuer: "i", elapsed_ms: 0.5 };
const COUNTS = { done: 1, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };

const name = fc.oneof(
  fc.bigInt(-(2n ** 63n), 2n ** 64n - 1n).map((value) => {
    return BigInt(Number(value)) === value && Number.isSafeInteger(Number(value))
      ? Number(value)
      : value;
  }),
  fc.string(),
);
const block = fc.record(
  {
    block: name,
    outcome: fc.constantFrom("done", "held", "rejected"),
    reason: fc.string(),
    by: fc.array(fc.record({ kind: fc.constant("pin" as const), owner: fc.string() })),
  },
  { requiredKeys: ["block", "outcome"] },
);
const receipt: fc.Arbitrary<Receipt> = fc.record({
  ...{ type: fc.constant("Cache"), status: fc.constantFrom("ok" as const, "partial" as const) },
  ...{ id: fc.option(fc.string()), counts: fc.constant(COUNTS), blocks: fc.array(block) },
  ...{ held: fc.array(block.map((held) => ({ ...held, block: "d", layer: 3 }))) },
  ...{ budget: fc.constant({ host_used_bytes: 2 ** 40 }), bytes: fc.maxSafeNat() },
  ...{ worker_id: fc.string(), incarnation: fc.constant(HEAD.incarnation), issuer: fc.string() },
  elapsed_ms: fc.double({ min: 0, max: 1e9, noNaN: true }),
});

/** The same number in either type; minus zero is zero. */
function plain(value: unknown): unknown {
  const text = JSON.stringify(value, (_key, item) =>
    typeof item === "bigint" || typeof item === "number" ? `#${Number(item)}` : item,
  );
  return JSON.parse(text);
}

describe("receipts on the wire", () => {
  test.each([JSON_TYPE, MSGPACK_TYPE] as const)("%s: a receipt decodes to its original", (type) => {
    fc.assert(
      fc.property(receipt, (written) => {
        const read = decodeReceipt(encodeReceipt(written, type), type);
        expect(plain(read)).toEqual(plain(written));
        const names = (of: Receipt) => of.blocks.map(({ block }) => String(block));
        expect(names(read!)).toEqual(names(written));
      }),
      { seed: 84, numRuns: 150 },
    );
  });

  test("a receipt is trimmed to the blocks that fit", () => {
    const blocks = Array.from({ length: 5_000 }, (_, i) => ({ block: i, outcome: "done" }));
    const full: Receipt = {
      ...HEAD,
      id: null,
      type: "Cache",
      status: "ok",
      counts: COUNTS,
      blocks,
    };
    for (const bytesMax of [300, 10_000, 100_000]) {
      const bytes = encodeReceipt(full, JSON_TYPE, bytesMax);
      expect(bytes.length).toBeLessThanOrEqual(bytesMax);
      const read = parseJson(new TextDecoder().decode(bytes)) as unknown as Receipt;
      expect(read.blocks.length + read.blocks_left_out!).toBe(5_000);
    }
    expect(decodeReceipt(encodeReceipt(full, JSON_TYPE), null)!.blocks_left_out).toBeUndefined();
  });

  test.each(["{}", "[]", "null", "x", '{"status":"ok"}'])("%s is not a receipt", (text) => {
    expect(decodeReceipt(new TextEncoder().encode(text), null)).toBeNull();
  });

  test("encoded receipts do not share bytes", () => {
    const one: Receipt = { ...HEAD, id: "1", type: "", status: "ok", counts: COUNTS, blocks: [] };
    const first = encodeReceipt(one, MSGPACK_TYPE);
    const before = first.slice();
    encodeReceipt({ ...one, id: "2" }, MSGPACK_TYPE);
    expect(first).toEqual(before);
  });
});

const bytesOf = (text: string) => new TextEncoder().encode(text);
const TYPES: MediaType[] = [JSON_TYPE, MSGPACK_TYPE];

function linesOf(file: string): string[] {
  const text = readFileSync(join(import.meta.dir, "golden", file), "utf8");
  return text.trimEnd().split("\n");
}

/** The text of the member `body`, as in the file. */
function bodyOf(line: string): string {
  const start = line.indexOf('"body":') + '"body":'.length;
  return line.slice(start, line.indexOf(',"command":'));
}

/** A name as in the golden files: as given, and its meaning. */
function nameShown(name: BlockName): [string, string] {
  const { given } = name;
  if (name.kind === "key") return [given.toString(), `${name.bytes.toHex()}/${name.layer}`];
  const hex = (word: number) => word.toString(16).padStart(8, "0");
  return [given.toString(), hex(name.hi) + hex(name.lo)];
}

function shown(command: Command): Record<string, unknown> {
  const entries = Object.entries(command).flatMap(([key, value]): [string, unknown][] => {
    if (key === "blocks") return [[key, (value as BlockName[]).map(nameShown)]];
    if (key === "after") return [[key, nameShown(value as BlockName)]];
    if (typeof value === "bigint") return [[key, value.toString()]];
    const isLeftOut = value === null && key !== "ttlMs";
    return isLeftOut ? [] : [[key, value]];
  });
  return Object.fromEntries(entries);
}

function wordOf(decoded: DecodedCommand): string {
  return decoded.ok ? "taken" : decoded.refusal.code;
}

describe("commands on the wire", () => {
  const golden = linesOf("commands.jsonl").map((line) => {
    const { name, command, unnamed = [] } = JSON.parse(line);
    return [name, bodyOf(line), command, unnamed] as [string, string, object, string[]];
  });

  test.each(golden)("%s", (_name, body, command, unnamed) => {
    const decoded = decodeCommand(bytesOf(body), null);
    if (!decoded.ok) throw new Error(decoded.refusal.message);
    expect(shown(decoded.command)).toEqual(command as Record<string, unknown>);
    expect(decoded.unnamed.map(({ given }) => given.toString())).toEqual(unnamed);
  });

  test.each(golden.filter(([, body]) => !/__proto__|18446744073709551616/.test(body)))(
    "as MessagePack: %s",
    (_name, body, command) => {
      const decoded = decodeCommand(encodeBody(parseJson(body), MSGPACK_TYPE), MSGPACK_TYPE);
      if (!decoded.ok) throw new Error(decoded.refusal.message);
      expect(shown(decoded.command)).toEqual(command as Record<string, unknown>);
    },
  );

  test("every type has an example", () => {
    const types = new Set(golden.map(([, , command]) => (command as Command).type));
    expect([...types].sort()).toEqual([...COMMAND_TYPES].sort());
  });

  test.each(linesOf("refused.jsonl").map((line) => [JSON.parse(line)]))("%j", ({ body, word }) => {
    expect(wordOf(decodeCommand(bytesOf(body), JSON_TYPE))).toBe(word);
  });

  test("the last of a repeated member counts", () => {
    const body = '{"type":"Flush","lease_id":"a","type":"RevokeLease","lease_id":"b"}';
    const decoded = decodeCommand(bytesOf(body), null);
    expect(decoded).toMatchObject({ ok: true, command: { type: "RevokeLease", leaseId: "b" } });
  });

  test("a refusal has the readable members of the command's head", () => {
    const body = '{"type":"Cache","id":"c-1","issuer":"router","block_hashes":[{}],"pin":true}';
    const head = { type: "Cache", id: "c-1", issuer: "router" };
    expect(decodeCommand(bytesOf(body), null)).toMatchObject({ ok: false, head });
    const bad = decodeCommand(bytesOf('{"type":"Nonsense","id":{},"issuer":"\\n"}'), null);
    expect(bad).toMatchObject({ ok: false, head: { type: "Nonsense", id: null, issuer: null } });
  });

  test("any integer of 64 bits keeps its bits, in both encodings", () => {
    const hash = fc.bigInt(-(2n ** 63n), 2n ** 64n - 1n);
    fc.assert(
      fc.property(fc.array(hash, { maxLength: 40 }), fc.constantFrom(...TYPES), (hashes, type) => {
        // As clients have them: small values as numbers.
        const given = hashes.map((value) =>
          BigInt(Number(value)) === value ? Number(value) : value,
        );
        const safe = given.map((value, i) => (Number.isSafeInteger(value) ? value : hashes[i]!));
        const body = { type: "Cache", block_hashes: safe, pin: true };
        const decoded = decodeCommand(encodeBody(body, type), type);
        if (!decoded.ok || decoded.command.type !== "Cache") throw new Error(wordOf(decoded));
        const { blocks } = decoded.command;
        expect(blocks.map((name) => BigInt(name.given))).toEqual(hashes);
        const words = blocks.map((name) => {
          if (name.kind !== "hash") throw new Error("a hash is a hash");
          return (BigInt(name.hi) << 32n) | BigInt(name.lo);
        });
        expect(words).toEqual(hashes.map((value) => BigInt.asUintN(64, value)));
      }),
      { seed: 81, numRuns: 1_000 },
    );
  });
});

describe("limits", () => {
  const withBlocks = (count: number) => ({
    type: "Cache",
    block_hashes: new Array(count).fill(7),
    pin: true,
  });

  test.each(TYPES)("%s: the maximum number of blocks is accepted, one more is refused", (type) => {
    const { blocksMax } = COMMAND_LIMITS;
    const most = decodeCommand(encodeBody(withBlocks(blocksMax), type), type);
    expect(most).toMatchObject({ ok: true });
    const more = decodeCommand(encodeBody(withBlocks(blocksMax + 1), type), type);
    expect(wordOf(more)).toBe("too_large");
  });

  test("an oversized body is not parsed", () => {
    const body = new Uint8Array(COMMAND_LIMITS.bytesMax + 1).fill(0x5b);
    expect(wordOf(decodeCommand(body, null))).toBe("too_large");
    expect(wordOf(decodeCommand(body.subarray(1), null))).toBe("too_deep");
  });

  test.each(TYPES)("%s: values in unknown members count against the limit", (type) => {
    const lists = Array.from({ length: 5 }, () => new Array(COMMAND_LIMITS.blocksMax).fill(0));
    const refused = decodeCommand(encodeBody({ ...withBlocks(1), lists }, type), type);
    expect(refused).toMatchObject({ ok: false, refusal: { code: "too_large" } });
  });

  test("names are measured in bytes of UTF-8", () => {
    const pin = (owner: string) =>
      decodeCommand(encodeBody({ ...withBlocks(1), owner }, JSON_TYPE), null);
    expect(wordOf(pin("é".repeat(64)))).toBe("taken");
    expect(wordOf(pin("é".repeat(65)))).toBe("malformed");
    expect(wordOf(pin("a".repeat(128)))).toBe("taken");
  });

  test("invalid UTF-8 is refused", () => {
    const body = bytesOf('{"type":"RevokeLease","lease_id":"x"}');
    body[body.length - 3] = 0xff;
    expect(wordOf(decodeCommand(body, null))).toBe("malformed");
    const packed = encodeBody({ type: "RevokeLease", lease_id: "x" }, MSGPACK_TYPE);
    packed[packed.length - 1] = 0xff;
    expect(wordOf(decodeCommand(packed, MSGPACK_TYPE))).toBe("malformed");
  });
});

describe("untrusted MessagePack", () => {
  const refused = (hex: string) =>
    wordOf(decodeCommand(Uint8Array.fromHex(hex.replaceAll(" ", "")), MSGPACK_TYPE));

  test.each([
    ["nothing", "", "malformed"],
    ["a type that is never used", "c1", "malformed"],
    ["a list that says it has four thousand million items", "dd ffffffff", "malformed"],
    ["an object that says so", "df ffffffff", "malformed"],
    ["text that says so", "81 a161 db ffffffff", "malformed"],
    ["half a length", "81 a161 da ff", "malformed"],
    ["half a number", "81 a161 cf 00", "malformed"],
    ["a time", "81 a161 d6ff00000000", "malformed"],
    ["an extension", "81 a161 c70305000000", "malformed"],
    ["more behind it", "80 80", "malformed"],
    ["a key that is a list", "81 90 a161", "malformed"],
    ["a key of 64 bits", "81 cf0000000000000001 a161", "malformed"],
    ["the key __proto__", "81 a95f5f70726f746f5f5f 80", "malformed"],
  ])("%s", (_name, hex, word) => expect(refused(hex)).toBe(word));

  test("nested lists of maximum length allocate no memory", () => {
    // Each head promises 1,024 items; a decoder that trusts it allocates 8 KiB for each.
    const heads = new Uint8Array(3 * 30_000);
    for (let at = 0; at < heads.length; at += 3) heads.set([0xdc, 0x04, 0x00], at);
    expect(wordOf(decodeCommand(heads, MSGPACK_TYPE))).toBe("too_deep");
  });

  test("a key may be 32 raw bytes, which are copied", () => {
    const key = Uint8Array.from({ length: 32 }, (_, i) => i);
    const body = encodeBody({ type: "Warm", block_keys: [key] }, MSGPACK_TYPE);
    const decoded = decodeCommand(body, "application/x-msgpack; charset=binary");
    if (!decoded.ok || decoded.command.type !== "Warm") throw new Error(wordOf(decoded));
    body.fill(0);
    expect(decoded.command.blocks[0]).toMatchObject({
      kind: "key",
      given: key.toHex(),
      bytes: key,
    });
  });

  test("bytes of another length name nothing", () => {
    const body = { type: "Warm", block_keys: [new Uint8Array(8)] };
    expect(wordOf(decodeCommand(encodeBody(body, MSGPACK_TYPE), MSGPACK_TYPE))).toBe("malformed");
  });
});

const page = readFileSync(join(import.meta.dir, "../../docs/reference/commands.md"), "utf8");
/** The text after the row's name in the table of the page. */
const cellOf = (row: string) =>
  new RegExp(`^\\| ${row} \\| \`([^\`]+)\` \\|$`, "m").exec(page)![1]!;

test("the vector of docs/reference/commands.md has the signed bytes and their signature", () => {
  const seed = cellOf("seed");
  const body = new TextEncoder().encode(cellOf("body"));
  const user = userOfSeed(seed)!;
  expect(user.publicKey).toBe(cellOf("public key"));
  const bytes = signedBytes(cellOf("worker"), JSON_TYPE, body);
  expect(Buffer.from(bytes).toString("hex")).toBe(cellOf("bytes, in hex"));
  const signature = signCommand(user, cellOf("worker"), JSON_TYPE, body);
  expect(signature).toBe(cellOf("`Hearth-Signature`"));
  expect(publicUserKey(user.publicKey)!.verify(bytes, signature)).toBe(true);
});

test("media type, worker and body cannot be shifted into each other", () => {
  const body = new TextEncoder().encode("x");
  const all = [
    signedBytes("a", JSON_TYPE, body),
    signedBytes("a", MSGPACK_TYPE, body),
    signedBytes("b", JSON_TYPE, body),
    signedBytes("a", JSON_TYPE, new TextEncoder().encode("y")),
    signedBytes("a", JSON_TYPE, new Uint8Array()),
  ];
  expect(new Set(all.map((bytes) => Buffer.from(bytes).toString("hex"))).size).toBe(all.length);
});
