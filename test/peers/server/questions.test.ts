import { describe, expect, test } from "bun:test";
import type { PeerAnswer } from "../../../src/peers/index.ts";
import { decodeAnswer, encodeAnswer, readKeyFilter } from "../../../src/peers/wire/index.ts";
import { waitFor } from "../../support/index.ts";
import {
  digestOf,
  HELLO,
  itemOf,
  keyOf,
  MIB,
  NAMESPACE,
  OTHER,
  peer,
  pulling,
  startServer,
} from "./shelf.ts";

const UNKNOWN = new Uint8Array(32).fill(9);
const NOTHING = { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };

describe("a short request", () => {
  test("hello: returns this host's hello", async () => {
    const { server } = startServer();
    const hello = { ...HELLO, worker: peer("client").worker };
    expect(await server.call(peer("client"), { op: "hello", hello })).toEqual({
      op: "hello",
      hello: HELLO,
    });
    expect(await server.call(peer("another"), { op: "hello", hello })).toMatchObject({
      op: "refused",
    });
  });

  test("has: describes the blocks of this namespace", async () => {
    const { shelf, server } = startServer({ namespaces: new Set([NAMESPACE.toHex()]) });
    const [a, b] = [shelf.put(1), shelf.put(2, { tier: "ssd", bytes: 5 })];
    const blocks = [a, { digest: digestOf(3), layer: 0 }, b];
    const ask = (namespace: Uint8Array) =>
      server.call(peer("client"), { op: "has", namespace, blocks });
    const copy = { bytes: MIB, generation: 5n, checksum: 77n };
    expect(await ask(NAMESPACE)).toEqual({
      op: "has",
      blocks: [{ tiers: 2, ...copy }, NOTHING, { tiers: 4, ...copy, bytes: 5 }],
    });
    shelf.put(1, { namespace: OTHER });
    for (const namespace of [OTHER, UNKNOWN]) {
      expect(await ask(namespace)).toEqual({ op: "has", blocks: [NOTHING, NOTHING, NOTHING] });
    }
    expect(server.stats.foreign).toBe(2);
  });

  test("find: resolves engines' names in namespaces that are served", async () => {
    const { shelf, server } = startServer({ namespaces: new Set([NAMESPACE.toHex()]) });
    const name = new Uint8Array(8).fill(7);
    const here = Array.from({ length: 70 }, (_, i) => shelf.put(i));
    shelf.names.set(name.toHex(), [shelf.put(99, { namespace: OTHER }), ...here]);
    const names = [name, new Uint8Array(32)];
    const answer = await server.call(peer("client"), { op: "find", names });
    if (answer.op !== "find") throw new Error(answer.op);
    expect(answer.found.map((found) => found.length)).toEqual([64, 0]);
    expect(answer.found[0]!.every(({ namespace }) => namespace === NAMESPACE)).toBe(true);
    expect(decodeAnswer(encodeAnswer(answer)).ok).toBe(true);
  });

  test("is refused after shutdown", async () => {
    const { server } = startServer();
    server[Symbol.dispose]();
    const request = { op: "find", names: [] } as const;
    expect(await server.call(peer("client"), request)).toMatchObject({ op: "refused" });
  });
});

describe("a summary", () => {
  function world(limits = {}, seed = 3) {
    const started = startServer({ summaryMs: 3_000, summaryStaleMs: 60_000, ...limits }, seed);
    const ask = (known = 0n, namespace = NAMESPACE, worker = "client") =>
      started.server.call(peer(worker), { op: "summary", namespace, known });
    return { ...started, ask };
  }

  function opened(answer: PeerAnswer) {
    if (answer.op !== "summary" || answer.filter === null)
      throw new Error(`no filter: ${answer.op}`);
    const read = readKeyFilter(answer.filter);
    if (!read.ok) throw new Error(read.why);
    return { version: answer.version, filter: read.filter };
  }

  test("contains every block of its namespace, and none of another", async () => {
    const { shelf, ask } = world();
    const blocks = Array.from({ length: 2_000 }, (_, i) => shelf.put(i));
    const foreign = shelf.put(5_000, { namespace: OTHER });
    const { filter } = opened(await ask());
    expect(blocks.every((block) => filter.mayContain(keyOf(block)))).toBe(true);
    expect([filter.keys, filter.mayContain(keyOf(foreign))]).toEqual([2_000, false]);
  });

  test("is sent once, and again after blocks were added, but not at once", async () => {
    const { shelf, clock, ask, server } = world();
    shelf.put(1);
    const first = opened(await ask());
    expect(await ask(first.version)).toEqual({
      op: "summary",
      version: first.version,
      filter: null,
    });
    const block = shelf.put(2);
    expect((await ask(first.version)) as object).toMatchObject({ filter: null });
    clock.advance(3_000);
    const second = opened(await ask(first.version));
    expect(second.version).not.toBe(first.version);
    expect(second.filter.mayContain(keyOf(block))).toBe(true);
    expect(server.stats.summariesBuilt).toBe(2);
  });

  test("is rebuilt after a while if blocks only left", async () => {
    const { shelf, clock, ask } = world();
    const block = shelf.put(1);
    const first = opened(await ask());
    shelf.remove(block);
    clock.advance(59_999);
    expect(await ask(first.version)).toMatchObject({ filter: null });
    clock.advance(1);
    const second = opened(await ask(first.version));
    expect(second.filter.mayContain(keyOf(block))).toBe(false);
  });

  test("keeps its version if nothing changed", async () => {
    const { shelf, clock, ask, server } = world();
    for (let i = 0; i < 700; i++) shelf.put(i);
    const { version } = opened(await ask());
    const walks = shelf.walks;
    clock.advance(60_000);
    expect(await ask(version)).toEqual({ op: "summary", version, filter: null });
    expect([shelf.walks - walks, server.stats.summariesBuilt]).toEqual([1, 2]);
  });

  test("is built once for concurrent requests", async () => {
    const { shelf, ask } = world();
    shelf.put(1);
    const answers = await Promise.all([ask(), ask(0n, NAMESPACE, "b"), ask(0n, NAMESPACE, "c")]);
    expect(new Set(answers.map((answer) => opened(answer).version)).size).toBe(1);
    expect(shelf.walks).toBe(1);
  });

  test("of a namespace that is unknown or not served is empty", async () => {
    const { shelf, ask } = world({ namespaces: new Set([NAMESPACE.toHex()]) });
    const block = shelf.put(1, { namespace: OTHER });
    for (const namespace of [OTHER, UNKNOWN]) {
      const { version, filter } = opened(await ask(0n, namespace));
      expect([filter.keys, filter.mayContain(keyOf(block))]).toEqual([0, false]);
      expect(await ask(version, namespace)).toEqual({ op: "summary", version, filter: null });
    }
    expect(shelf.walks).toBe(0);
  });

  test("has another version after a restart", async () => {
    const versions = [1, 2].map(async (seed) => {
      const { shelf, ask } = world({}, seed);
      shelf.put(1);
      return opened(await ask()).version;
    });
    const [before, after] = await Promise.all(versions);
    expect(after).not.toBe(before);
  });

  test("that cannot be built gets busy, and is built later", async () => {
    const { shelf, ask, lines, clock } = world();
    shelf.put(1);
    shelf.onWalk = () => Promise.reject(new Error("no"));
    expect(await ask()).toMatchObject({ op: "busy", retryAfterMs: 3_000 });
    expect(lines).toEqual(["error building a summary failed: no"]);
    shelf.onWalk = async () => {};
    const { version } = opened(await ask());
    shelf.onWalk = () => Promise.reject(new Error("no"));
    clock.advance(60_000);
    expect(opened(await ask()).version).toBe(version);
  });

  test("gets busy if the peer has too many requests", async () => {
    const { shelf, ask, server } = world({ peerRequestsMax: 1 });
    const pull = pulling(server, [itemOf(shelf.put(1, { tier: "ssd" }))]);
    const waiting = pull.next();
    await waitFor(() => shelf.reads.length === 1);
    expect(await ask()).toMatchObject({ op: "busy" });
    expect(await ask(0n, NAMESPACE, "other")).toMatchObject({ op: "summary" });
    pull.abort();
    expect(await waiting).toBeNull();
    shelf.reads[0]!.finish();
    expect(await ask()).toMatchObject({ op: "summary" });
  });

  test("in progress is cancelled by shutdown", async () => {
    const { shelf, ask, server, lines } = world();
    shelf.put(1);
    const { promise, resolve } = Promise.withResolvers<void>();
    shelf.onWalk = () => promise;
    const asked = ask();
    await waitFor(() => shelf.walks === 1);
    server[Symbol.dispose]();
    resolve();
    expect(await asked).toMatchObject({ op: "busy" });
    expect(lines).toEqual([]);
  });
});
