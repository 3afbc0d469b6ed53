import { expect, test } from "bun:test";
import { type BlockResult, LAYER_ALL, type NamespaceIndex } from "../../src/core/index.ts";
import { GpuWarming, Outcome } from "../../src/engine/index.ts";
import { digestOf } from "../store/names.ts";
import { describeNative, ManualClock } from "../support/index.ts";
import { openAgent } from "./agent-kit.ts";
import type { Engine } from "./engine.ts";

const NONE = { count: 0, outcome: new Uint32Array(0) };
const never = new AbortController().signal;

const block = (name: string, namespace = 0, layer = LAYER_ALL) => ({
  namespace: namespace as NamespaceIndex,
  layer,
  digest: digestOf(name),
});
const words = (results: readonly BlockResult[]) =>
  results.map(({ outcome, reason }) => (reason === undefined ? outcome : reason));

interface Taken {
  readonly offer: number;
  readonly digests: readonly string[];
}

/** Waits for an offer and passes the outcomes of the previous one. */
function waitFor(
  engine: ReturnType<GpuWarming["open"]>,
  offer = 0,
  outcomes: readonly number[] = [],
  deadlineMs = 0,
): Promise<Taken> {
  return new Promise((resolve) => {
    const answer = { count: outcomes.length, outcome: Uint32Array.from(outcomes) };
    engine.wait(offer, answer, deadlineMs, (number, { count, digests }) => {
      const hex = Array.from({ length: count }, (_, i) => digests.slice(32 * i, 32 * i + 32));
      resolve({ offer: number, digests: hex.map((digest) => digest.toHex()) });
    });
  });
}

function openDesk(itemsMax = 16) {
  const clock = new ManualClock();
  const desk = new GpuWarming({ clock, itemsMax });
  return { clock, desk, engine: desk.open(0 as NamespaceIndex) };
}

const hexOf = (...names: string[]) => names.map((name) => digestOf(name).toHex());

describeNative("blocks offered to waiting engines", () => {
  test("each outcome of the engine becomes the block's result", async () => {
    const { desk, engine } = openDesk();
    const taken = waitFor(engine);
    const names = ["ok", "gone", "full", "failed", "silent"];
    const offered = desk.offer(
      names.map((name) => block(name)),
      never,
    );
    const { offer, digests } = await taken;
    expect(digests).toEqual(hexOf(...names));
    void waitFor(engine, offer, [Outcome.ok, Outcome.miss, Outcome.full, Outcome.device]);
    expect(words(await offered)).toEqual([
      "done",
      "missing",
      "gpu_sink: in RAM; the engine has no room",
      "gpu_sink: in RAM; the engine did not load it",
      "gpu_sink: in RAM; the engine did not answer the offer in time",
    ]);
  });

  test("offers have one layer, fit a frame, and are sent one after another", async () => {
    const { desk, engine } = openDesk(2);
    const blocks = [block("a"), block("b", 0, 7), block("c"), block("d"), block("e", 1)];
    let taken = waitFor(engine);
    const offered = desk.offer(blocks, never);
    const seen: string[][] = [];
    for (let turn = 0; turn < 3; turn++) {
      const { offer, digests } = await taken;
      seen.push([...digests]);
      taken = waitFor(
        engine,
        offer,
        digests.map(() => Outcome.ok),
      );
    }
    expect(seen).toEqual([hexOf("a", "c"), hexOf("b"), hexOf("d")]);
    // No engine of the other namespace is waiting.
    expect(words(await offered).map((word) => word.slice(0, 8))).toEqual([
      ...new Array<string>(4).fill("done"),
      "gpu_sink",
    ]);
  });

  test("blocks are deferred unless an engine waits or is expected back", async () => {
    const { clock, desk, engine } = openDesk();
    expect(words(await desk.offer([block("a")], never))).toEqual([
      "gpu_sink: in RAM; no engine here loads blocks to its GPU without a request",
    ]);
    const none = waitFor(engine, 0, [], 50);
    clock.advance(50);
    expect(await none).toEqual({ offer: 0, digests: [] });
    const offered = desk.offer([block("a")], never);
    const { offer } = await waitFor(engine);
    void waitFor(engine, offer, [Outcome.ok]);
    expect(words(await offered)).toEqual(["done"]);
  });

  test("an engine that does not answer, is busy or goes: deferred", async () => {
    const { clock, desk, engine } = openDesk();
    const taken = waitFor(engine);
    const first = desk.offer([block("a")], never);
    await taken;
    const second = desk.offer([block("b")], never);
    clock.advance(10_000);
    expect(words(await first)).toEqual([
      "gpu_sink: in RAM; the engine did not answer the offer in time",
    ]);
    expect(words(await second)).toEqual(["gpu_sink: in RAM; the engine is busy with other blocks"]);
    const again = waitFor(engine);
    const third = desk.offer([block("c")], never);
    await again;
    const fourth = desk.offer([block("d")], never);
    engine.close();
    const gone = "gpu_sink: in RAM; the engine disconnected";
    expect(words([...(await third), ...(await fourth)])).toEqual([gone, gone]);
  });

  test("an offer ends when its caller aborts or the agent stops", async () => {
    const { desk, engine } = openDesk();
    const ending = new AbortController();
    const taken = waitFor(engine);
    const first = desk.offer([block("a")], ending.signal);
    await taken;
    const second = desk.offer([block("b")], ending.signal);
    ending.abort();
    const aborted = "gpu_sink: in RAM; the offer was cancelled";
    expect(words([...(await first), ...(await second)])).toEqual([aborted, aborted]);
    const none = waitFor(engine);
    desk.stop();
    expect(await none).toEqual({ offer: 0, digests: [] });
  });

  test("over the socket only an engine of the namespace receives offers", async () => {
    await using agent = await openAgent();
    await using engine = await agent.connect("one");
    await using other = await agent.connect("two");
    const wait = (from: Engine, offer: number, outcomes: number[]) => {
      const blocks = { count: 0, layer: 0, digests: new Uint8Array(64) };
      const answer = { count: outcomes.length, outcome: Uint32Array.from(outcomes) };
      const gpu = from.client.gpu.warm({ offer, deadlineMs: 5_000 }, answer, blocks);
      return gpu.then((number) => ({ number, blocks }));
    };
    // Namespaces are numbered from 1 in order of arrival.
    const none = wait(other, 0, []);
    const taken = wait(engine, 0, []);
    await engine.client.ping(new Uint8Array(8));
    const offered = agent.server.gpuSink.offer([block("a", 1)], never);
    const { number, blocks } = await taken;
    expect(blocks).toMatchObject({ count: 1, layer: LAYER_ALL });
    expect(blocks.digests.slice(0, 32).toHex()).toBe(digestOf("a").toHex());
    const next = wait(engine, number, [Outcome.ok]);
    expect(words(await offered)).toEqual(["done"]);
    // One wait at a time, and a drain ends the waits.
    await expect(engine.client.gpu.warm({ offer: 0, deadlineMs: 1 }, NONE, blocks)).rejects.toThrow(
      "already waits for an offer",
    );
    const hurry = new AbortController();
    const drained = agent.server.drain(5_000, hurry.signal);
    expect((await next).number).toBe(0);
    expect((await none).number).toBe(0);
    await drained;
    expect(agent.server.connections).toBe(0);
  });
});
