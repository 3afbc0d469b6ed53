import { expect, test } from "bun:test";
import { seededRandom, systemClock } from "../../../src/core/index.ts";
import {
  decodeEngineBatch,
  type EngineEvent,
  type IngestChange,
} from "../../../src/events/index.ts";
import { EngineBatches, TokenTable, ZmqPublisher } from "../../../src/events/publishing/index.ts";
import { blockKeys, digestsOfPrompt } from "../../../src/identity/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import type { ResidencyChange, ResidencyTier } from "../../../src/observability/activity/index.ts";
import { describeNative, describePyzmq, PyzmqProcess, waitFor } from "../../support/index.ts";
import { sequenceHashes } from "../literal-hashes.ts";
import { ask, bytes, collect } from "../zmtp/support.ts";

const BLOCK = 4;
const NAMESPACE = new Uint8Array(32).fill(9);
const LAYER_ALL = 0xffff_ffff;

const tokensOf = (from: number, blocks: number) =>
  Uint32Array.from({ length: blocks * BLOCK }, (_, i) => from + i);

/** An engine's events for a prompt, from block `skip` on. */
function engineStored(tokens: Uint32Array, tier: ResidencyTier, skip = 0): IngestChange {
  const hashes = hashesOf(tokens);
  const change = {
    kind: "stored" as const,
    ...{ tier, tokenHashes: null },
    parent: skip === 0 ? null : hashes[skip - 1]!,
    hashes: hashes.slice(skip),
  };
  return { change, tokens: tokens.slice(skip * BLOCK), isPlain: true };
}

function hashesOf(tokens: Uint32Array): BigUint64Array {
  const local = tokensOfBlocks(tokens).map((block) => localOf(block));
  return BigUint64Array.from(sequenceHashes(BigUint64Array.from(local)));
}

const tokensOfBlocks = (tokens: Uint32Array) =>
  Array.from({ length: tokens.length / BLOCK }, (_, i) => tokens.slice(i * BLOCK, (i + 1) * BLOCK));

const localOf = (block: Uint32Array) => Bun.hash.xxHash3(new Uint8Array(block.buffer), 1337n);

/** The first eight bytes of the keys under which this host stores the blocks of a prompt. */
function keysOf(tokens: Uint32Array): BigUint64Array {
  const native = loadNative();
  const digests = digestsOfPrompt(native, NAMESPACE, tokens, BLOCK);
  const packed = blockKeys(native, digests, LAYER_ALL);
  const view = new DataView(packed.buffer, packed.byteOffset);
  return BigUint64Array.from({ length: tokens.length / BLOCK }, (_, i) =>
    view.getBigUint64(i * 32, true),
  );
}

function kept(tier: ResidencyTier, hashes: BigUint64Array): ResidencyChange {
  return { kind: "stored", tier, parent: null, hashes, tokenHashes: null };
}

function batches(blocksMax = 1_000) {
  const hashing = loadNative();
  const namespaces = () => [{ key: NAMESPACE, chain: null }];
  const book = new TokenTable({ hashing, blockTokens: BLOCK, blocksMax, namespaces });
  const told = new EngineBatches(book, BLOCK, 1_000);
  const engine = (changes: readonly IngestChange[]) =>
    told.engine(
      changes,
      changes.flatMap((change) => book.learn(change)),
    );
  return { told, engine };
}

/** The state of a consumer of engine events: by medium, the number of copies of each hash. */
function apply(has: Map<string, number>, events: readonly EngineEvent[]): void {
  for (const event of events) {
    if (event.kind !== "stored" && event.kind !== "removed") continue;
    for (const hash of event.hashes) {
      const name = `${event.medium} ${hash}`;
      has.set(name, (has.get(name) ?? 0) + (event.kind === "stored" ? 1 : -1));
      if (has.get(name)! < 0) throw new Error(`${name} was removed too often`);
      if (has.get(name) === 0) has.delete(name);
    }
  }
}

describeNative("blocks as engine events", () => {
  test("an engine's own events pass with their tokens, which also name the stored blocks", () => {
    const { told, engine } = batches();
    const prompt = tokensOf(1, 3);
    const [a, b, c] = hashesOf(prompt);
    const device = engine([engineStored(prompt, "device")]);
    expect(device).toHaveLength(1);
    const stored = { kind: "stored", hashes: [a, b, c], parent: null, blockTokens: BLOCK };
    expect(device[0]).toMatchObject({ ...stored, tokens: prompt, medium: "GPU" } as never);
    expect(engine([engineStored(prompt, "device")])).toEqual([]);
    const host = told.store([kept("host", keysOf(prompt)), kept("device", keysOf(prompt))]);
    expect(host).toHaveLength(1);
    expect(host[0]).toMatchObject({ ...stored, tokens: prompt, medium: "CPU" } as never);
    const keys = keysOf(prompt);
    const gone = told.store([{ kind: "removed", tier: "host", hashes: keys.slice(1) }]);
    expect(gone).toMatchObject([{ kind: "removed", hashes: [b, c], medium: "CPU" }] as never);
  });

  test("blocks are published once their tokens are known, and never without", () => {
    const { told, engine } = batches();
    const prompt = tokensOf(1, 2);
    const other = tokensOf(1_000, 2);
    expect(told.store([kept("disk", keysOf(prompt)), kept("host", keysOf(other))])).toEqual([]);
    expect(told.unnamed).toBe(4);
    const events = engine([engineStored(prompt, "device")]);
    expect(events.map((event) => event.kind === "stored" && event.medium)).toEqual([
      ...["GPU", "STORAGE", "STORAGE"],
    ]);
    expect(told.unnamed).toBe(2);
    // Salted blocks have the tokens of others, but are different blocks.
    const salted = { ...engineStored(other, "device"), isPlain: false };
    expect(engine([salted])).toEqual([]);
    const gone = told.store([{ kind: "cleared", tier: null }]);
    expect(gone).toMatchObject([{ kind: "removed", medium: "STORAGE" }]);
    expect(told.unnamed).toBe(0);
  });

  test("every block is stored as often as it has copies, after any history", () => {
    const random = seededRandom(3);
    const { told, engine } = batches(60);
    const prompts = Array.from({ length: 8 }, (_, i) => tokensOf(i * 100, 10));
    const has = new Map<string, number>();
    const pick = () => prompts[random.u32() % prompts.length]!;
    for (let i = 0; i < 600; i++) {
      const prompt = pick();
      const skip = random.u32() % 9;
      const tier = random.u32() % 2 === 0 ? ("host" as const) : ("disk" as const);
      const dice = random.u32() % 8;
      const keys = keysOf(prompt).slice(skip);
      if (dice < 2) apply(has, engine([engineStored(prompt, "device", skip)]));
      else if (dice < 3) {
        const hashes = hashesOf(prompt).slice(skip);
        const change = { kind: "removed", tier: "device", hashes } as const;
        apply(has, engine([{ change, tokens: null, isPlain: true }]));
      } else if (dice < 6) apply(has, told.store([kept(tier, keys)]));
      else apply(has, told.store([{ kind: "removed", tier, hashes: keys }]));
    }
    apply(has, told.store([{ kind: "cleared", tier: null }]));
    const cleared = { kind: "cleared", tier: null } as const;
    apply(has, engine([{ change: cleared, tokens: null, isPlain: true }]));
    expect(has.size).toBe(0);
  });
});

const STORED = (n: number): EngineEvent => ({
  ...{ kind: "stored", hashes: [BigInt(n)], parent: null, tokens: tokensOf(n, 1), blockTokens: 4 },
  ...{ loraName: null, loraId: null, medium: "GPU", extras: null, group: null, cacheSalt: null },
  ...{ locality: null, ownership: null, sessionId: null, eagleNext: null },
});

async function open(replay = true) {
  return ZmqPublisher.open({
    ...{ endpoint: "tcp://127.0.0.1:*", replay: replay ? "tcp://127.0.0.1:*" : null },
    ...{ topic: "kv", rank: 3, clock: systemClock, random: seededRandom(1) },
  });
}

const numberIn = (frame: Uint8Array) => Buffer.from(frame).readBigInt64BE();

test("subscribers get topic, number and batch; the first one clears", async () => {
  await using publisher = await open();
  await using sub = collect(publisher.state.endpoint, ["kv"]);
  await using dealer = ask(publisher.state.replay!);
  await waitFor(() => publisher.state.subscribers === 1 && dealer.state.status === "connected");
  for (let n = 1; n <= 5; n++) publisher.publish([STORED(n)]);
  await waitFor(() => sub.messages.length === 5);
  expect(sub.messages.map(([, number]) => numberIn(number!))).toEqual([1n, 2n, 3n, 4n, 5n]);
  expect(Buffer.from(sub.messages[0]![0]!).toString()).toBe("kv");
  const first = decodeEngineBatch(sub.messages[0]![2]!);
  expect(first).toMatchObject({ ok: true, value: { rank: 3, events: [STORED(1)] } } as never);
  // Missed messages are requested as in vLLM.
  dealer.send([new Uint8Array(0), new Uint8Array(8)]);
  await waitFor(() => dealer.messages.length === 7);
  expect(dealer.messages.map((frames) => numberIn(frames[2]!))).toEqual([
    ...[0n, 1n, 2n, 3n, 4n, 5n, -1n],
  ]);
  const cleared = decodeEngineBatch(dealer.messages[0]![3]!);
  expect(cleared).toMatchObject({ ok: true, value: { events: [{ kind: "cleared" }] } } as never);
});

test("invalid requests get no answer, and those beyond the end get the end marker", async () => {
  await using publisher = await open();
  await using dealer = ask(publisher.state.replay!);
  await waitFor(() => dealer.state.status === "connected");
  dealer.send([bytes("x"), new Uint8Array(8)]);
  dealer.send([new Uint8Array(0), new Uint8Array(7)]);
  dealer.send([new Uint8Array(0)]);
  dealer.send([new Uint8Array(0), new Uint8Array(8).fill(0xff)]);
  await waitFor(() => dealer.messages.length === 1);
  expect(numberIn(dealer.messages[0]![2]!)).toBe(-1n);
  expect(publisher.state.replays).toBe(1);
});

test("a flood stays within the limits, and kept messages are replayed in order", async () => {
  await using publisher = await open();
  const events = Array.from({ length: 300 }, (_, n) => STORED(n));
  for (let i = 0; i < 12_000; i++) publisher.publish(events.slice(i % 299, (i % 299) + 1));
  await using dealer = ask(publisher.state.replay!, { queueMessagesMax: 50_000 });
  await waitFor(() => dealer.state.status === "connected");
  dealer.send([new Uint8Array(0), new Uint8Array(8)]);
  await waitFor(() => dealer.messages.length > 0 && isEnd(dealer.messages.at(-1)!), 20_000);
  const numbers = dealer.messages.slice(0, -1).map((frames) => Number(numberIn(frames[2]!)));
  expect(numbers.length).toBeLessThanOrEqual(11_001);
  expect(numbers.length).toBeGreaterThanOrEqual(10_000);
  expect(numbers).toEqual(numbers.map((_, i) => numbers[0]! + i));
  expect(numbers.at(-1)).toBe(12_000);
});

const isEnd = (frames: readonly Uint8Array[]) => numberIn(frames[2]!) === -1n;

describePyzmq("a subscriber of another implementation", () => {
  test("receives published messages and replays missed ones", async () => {
    await using publisher = await open();
    publisher.publish([STORED(1)]);
    const { endpoint, replay } = publisher.state;
    await using child = new PyzmqProcess(`
s = c.socket(zmq.SUB)
s.connect("${endpoint}")
s.setsockopt(zmq.SUBSCRIBE, b"kv")
d = c.socket(zmq.DEALER)
d.connect("${replay}")
d.send_multipart([b"", (0).to_bytes(8, "big")])
while True:
  f = d.recv_multipart()
  print("replay", int.from_bytes(f[-2], "big", signed=True), len(f[-1]) > 0)
  if not f[-1]: break
f = s.recv_multipart()
print("live", f[0].decode(), int.from_bytes(f[1], "big"), len(f))
`);
    await waitFor(() => child.lines.length === 3, 20_000);
    await waitFor(() => publisher.state.subscribers === 1);
    publisher.publish([STORED(2)]);
    await waitFor(() => child.lines.length === 4, 20_000);
    expect(child.lines).toEqual([
      ...["replay 0 True", "replay 1 True", "replay -1 False", "live kv 2 3"],
    ]);
  });
});
