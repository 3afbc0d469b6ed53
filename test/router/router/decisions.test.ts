import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { WorkerId } from "../../../src/core/index.ts";
import { ROUTER_DEFAULTS, type RouteRequest } from "../../../src/router/index.ts";
import { B, openRouter, promptOf, workerOf } from "./open-router.ts";

const QUIET = { prediction: { ...ROUTER_DEFAULTS.prediction, besideEventsMs: 0 } };

const holding = fc.record({
  device: fc.nat(12),
  host: fc.nat(12),
  disk: fc.nat(12),
  live: fc.array(fc.record({ blocks: fc.nat(12), isPrefilled: fc.boolean() }), { maxLength: 3 }),
});

/** The formula of the document, for one worker, in blocks of B. */
function literalCost(
  tokens: number,
  held: { device: number; host: number; disk: number },
  load: { prefill: number; active: number; additional: number },
): number {
  const cached = Math.round((held.device + 0.75 * held.host + 0.25 * held.disk) * B);
  const raw = load.prefill + (tokens - Math.min(cached, tokens)) + cached;
  const credit = held.device + 0.75 * held.host + 0.25 * held.disk;
  return Math.max(0, raw / B - credit) + load.active + load.additional;
}

test("costs are those of the formula, and the lowest one wins", () => {
  fc.assert(
    fc.property(
      fc.array(holding, { minLength: 1, maxLength: 4 }),
      fc.integer({ min: 0, max: 12 * B + 3 }),
      (workers, tokens) => {
        const { join, hold, load, router, ask } = openRouter(QUIET);
        const prompt = promptOf(tokens);
        const whole = promptOf(12 * B);
        const costs = workers.map(({ device, host, disk, live }, at) => {
          const name = `w${at}`;
          const { id } = join(name);
          const most = Math.max(device, host, disk);
          if (device > 0) hold(name, whole, device);
          if (host > 0) hold(name, whole, host, "host");
          if (disk > 0) hold(name, whole, disk, "disk");
          let [prefill, active] = [0, 0];
          for (const [number, { blocks, isPrefilled }] of live.entries()) {
            const request = `${name} ${number}`;
            ask(promptOf(blocks * B), {
              requestId: request,
              overrides: { worker: name as WorkerId },
            });
            const { prefillTokens } = load.find(request)!;
            if (isPrefilled) router.markPrefillComplete(request);
            else prefill += prefillTokens;
            active = Math.max(active, blocks);
          }
          const full = Math.floor(tokens / B);
          const dev = Math.min(device, full);
          const onHost = Math.min(Math.max(host, device), full) - dev;
          const onDisk = Math.min(most, full) - dev - onHost;
          const additional = Math.ceil(tokens / B) - Math.min(active, full);
          expect(load.of(id).activeBlocks).toBe(active);
          const held = { device: dev, host: onHost, disk: onDisk };
          return literalCost(tokens, held, { prefill, active, additional });
        });
        const outcome = ask(prompt, { requestId: "asked" });
        const { candidates, chosen } = router.explain("asked")!;
        const seen = candidates.map(({ terms }) => terms.cost);
        for (const [at, cost] of costs.entries()) expect(seen[at]).toBeCloseTo(cost, 9);
        const candidateIndex = workers.findIndex((_, at) => `w${at}` === workerOf(outcome));
        expect(seen[candidateIndex]).toBe(Math.min(...seen));
        expect(chosen?.worker as string).toBe(workerOf(outcome));
      },
    ),
    { numRuns: 150 },
  );
});

test("the example of docs/internals/router.md", () => {
  const { join, router, load, index, hasher } = openRouter({ ...QUIET, blockTokens: 16 });
  const tokens = promptOf(1_000);
  const hashes = hasher.tokens(tokens, 16, 1_337n);
  const ids = ["one", "two", "three"].map((name) => join(name).id);
  const stored = { kind: "stored", parent: null, tokenHashes: null } as const;
  const store = (at: number, tier: "device" | "host" | "disk", blocks: number) => {
    const change = { ...stored, tier, hashes: hashes.slice(0, blocks) };
    index.apply([{ target: ids[at]!, change }]);
  };
  store(1, "device", 60);
  store(2, "device", 20);
  store(2, "host", 30);
  store(2, "disk", 36);
  const other = hasher.tokens(promptOf(48, 5_000), 16, 1_337n);
  const work = { target: ids[1]!, expectedOutputTokens: null };
  const ours = { id: "x", hashes: hashes.slice(0, 37), promptTokens: 592, prefillTokens: 800 };
  load.add({ ...work, ...ours });
  load.add({ ...work, id: "y", hashes: other, promptTokens: 48, prefillTokens: 0 });
  router.bestWorkerNow({ model: "m", prompt: { kind: "tokens", tokens }, requestId: "r" });
  const { candidates, chosen, decidedBy } = router.explain("r")!;
  expect(candidates.map(({ terms }) => terms.cost)).toEqual([125.5, 118.5, 96.5]);
  expect(candidates.map(({ terms }) => terms.cachedTokens)).toEqual([0, 960, 464]);
  expect(candidates.map(({ probability }) => probability)).toEqual([0, 0, 1]);
  expect(chosen).toEqual({ worker: "three" as WorkerId, rank: 0 });
  expect(decidedBy).toBe("lowest_cost");
});

describe("modes", () => {
  const ids = (count: number) => Array.from({ length: count }, (_, at) => `r${at}`);

  test("round-robin rotates over eligible workers and a query does not advance it", () => {
    const { join, ask } = openRouter({ mode: "round-robin" });
    for (const name of ["a", "b", "c"]) join(name);
    const go = (more = {}) => workerOf(ask(promptOf(8), more));
    const order = ids(4).map((requestId) => go({ requestId }));
    expect(order).toEqual(["a", "b", "c", "a"]);
    expect([go(), go()]).toEqual(["b", "b"]);
    expect(go({ requestId: "x", overrides: { excluded: ["b" as WorkerId] } })).toBe("c");
    expect(go({ requestId: "y" })).toBe("a");
  });

  test("random picks each worker equally often", () => {
    const { join, ask } = openRouter({ mode: "random" });
    for (const name of ["a", "b", "c", "d"]) join(name);
    const seen = new Map<string, number>();
    for (let i = 0; i < 4_000; i++) {
      const name = workerOf(ask(promptOf(8)));
      seen.set(name, (seen.get(name) ?? 0) + 1);
    }
    expect([...seen.keys()].sort()).toEqual(["a", "b", "c", "d"]);
    for (const count of seen.values()) expect(Math.abs(count - 1_000)).toBeLessThan(150);
  });

  test("least-loaded counts active requests", () => {
    const { join, ask, router } = openRouter({ mode: "least-loaded" });
    for (const name of ["a", "b"]) join(name);
    const first = workerOf(ask(promptOf(8), { requestId: "one" }));
    const second = workerOf(ask(promptOf(8), { requestId: "two" }));
    expect([first, second].sort()).toEqual(["a", "b"]);
    router.free("one");
    expect(workerOf(ask(promptOf(400)))).toBe(first);
  });

  test("direct routes only to the named worker", () => {
    const { join, ask } = openRouter();
    join("a");
    join("b", { model: "x" });
    const direct = (worker?: string) => {
      const overrides = { mode: "direct" as const, ...(worker && { worker: worker as WorkerId }) };
      return workerOf(ask(promptOf(8), { overrides }));
    };
    expect(direct("a")).toBe("a");
    expect(direct("b")).toBe("unknown_worker");
    expect(direct("nobody")).toBe("unknown_worker");
    expect(direct()).toBe("unknown_worker");
    expect(workerOf(openRouter().ask(promptOf(8)))).toBe("none");
  });

  test("temperature draws by softmax, the same with the same seed", () => {
    const { join, hold, ask, router } = openRouter({ ...QUIET, temperature: 0.5 });
    for (const name of ["a", "b", "c"]) join(name);
    hold("b", promptOf(40), 5);
    const go = (seed: number, requestId: string) => {
      const name = workerOf(ask(promptOf(40), { requestId, overrides: { seed } }));
      const { draw, decidedBy } = router.explain(requestId)!;
      router.free(requestId);
      return { name, draw, decidedBy };
    };
    for (let seed = 0; seed < 20; seed++) expect(go(seed, "x")).toEqual(go(seed, "y"));
    expect(go(3, "x").decidedBy).toBe("softmax");
    const names = new Set(Array.from({ length: 40 }, (_, seed) => go(seed, "z").name));
    expect([...names].sort()).toEqual(["a", "b", "c"]);
    const { candidates } = router.explain("z")!;
    const sum = candidates.reduce((all, { probability }) => all + probability, 0);
    expect(sum).toBeCloseTo(1, 12);
    expect(candidates[1]!.probability).toBeGreaterThan(candidates[0]!.probability);
  });
});

describe("sources of known prefixes", () => {
  test("LoRA and salt separate prefixes", () => {
    const { join, hold, ask } = openRouter(QUIET);
    for (const name of ["a", "b"]) join(name);
    hold("b", promptOf(80), 20);
    const overlap = (more: object) => {
      const outcome = ask(promptOf(80), { overrides: { worker: "b" as WorkerId }, ...more });
      return outcome.kind === "routed" ? outcome.terms.deviceBlocks : -1;
    };
    expect(overlap({})).toBe(20);
    expect(overlap({ loraName: "l" })).toBe(0);
    expect(overlap({ cacheSalt: "s" })).toBe(0);
  });

  test("with two key spaces each tier counts its longer match", () => {
    const { join, hold, index, hasher, ask } = openRouter(QUIET);
    const namespaceKey = new Uint8Array(32).fill(7);
    const blocks = { kind: "blocks", model: "m", blockTokens: 8, namespaceKey } as const;
    const { id } = join("a", { spaces: [{ kind: "tokens", model: "m", blockTokens: B }, blocks] });
    hold("a", promptOf(80), 3);
    const hashes = hasher.blocks(promptOf(80), 8, namespaceKey).slice(0, 5);
    const stored = { kind: "stored", tier: "host", parent: null, tokenHashes: null } as const;
    index.apply([{ target: id, change: { ...stored, hashes } }]);
    const outcome = ask(promptOf(80));
    // Device: 3 blocks of 4 tokens; host: 5 blocks of 8, of which 12 tokens are on the device.
    expect(outcome.kind === "routed" && outcome.terms).toMatchObject({
      deviceBlocks: 3,
      hostBlocks: 7,
      diskBlocks: 0,
    });
  });

  for (const cacheSalt of [undefined, "tenant-a"]) {
    test(`blocks named by vLLM's chain keys, salt ${cacheSalt}: found by tokens`, () => {
      const { join, index, hasher, ask } = openRouter(QUIET);
      const namespaceKey = new Uint8Array(32).fill(7);
      const chain = "vllm sha256 tagged vllm-none-hash";
      const space = { kind: "blocks", model: "m", blockTokens: 8, namespaceKey, chain } as const;
      const { id } = join("a", { spaces: [space] });
      const hashes = hasher.chained(promptOf(80), 8, cacheSalt)(namespaceKey, chain)!.slice(0, 5);
      const stored = { kind: "stored", tier: "host", parent: null, tokenHashes: null } as const;
      index.apply([{ target: id, change: { ...stored, hashes } }]);
      const hostBlocks = (more: Partial<RouteRequest>) => {
        const outcome = ask(promptOf(80), more);
        return outcome.kind === "routed" ? outcome.terms.hostBlocks : -1;
      };
      expect(hostBlocks(cacheSalt === undefined ? {} : { cacheSalt })).toBe(10);
      expect(hostBlocks({ cacheSalt: "other" })).toBe(0);
      expect(hostBlocks({ loraName: "l" })).toBe(0);
    });
  }

  test("without events, routed prompts count as cached for a time", () => {
    const { clock, join, hold, ask } = openRouter({ useKvEvents: false });
    for (const name of ["a", "b", "c"]) join(name);
    const first = workerOf(ask(promptOf(80), { requestId: "one" }));
    const other = ["a", "b", "c"].find((name) => name !== first)!;
    hold(other, promptOf(80), 20);
    const again = ask(promptOf(80));
    expect(workerOf(again)).toBe(first);
    expect(again.kind === "routed" && again.terms.deviceBlocks).toBe(20);
    clock.advance(120_000);
    const late = ask(promptOf(80));
    expect(late.kind === "routed" && late.terms.deviceBlocks).toBe(0);
  });

  test("beside events, routed prompts count as cached until events can confirm them", () => {
    const { clock, join, ask, router } = openRouter();
    for (const name of ["a", "b", "c"]) join(name);
    const first = workerOf(ask(promptOf(80), { requestId: "one" }));
    router.free("one");
    const blocks = () => {
      const outcome = ask(promptOf(80), { overrides: { worker: first as WorkerId } });
      return outcome.kind === "routed" ? outcome.terms.deviceBlocks : -1;
    };
    expect(blocks()).toBe(20);
    clock.advance(2_000);
    expect(blocks()).toBe(0);
  });

  test("hashes route like tokens", () => {
    const { join, hold, hasher, router } = openRouter(QUIET);
    join("a");
    hold("a", promptOf(80), 11);
    const hashes = hasher.tokens(promptOf(80), B, 1_337n);
    const prompt = { kind: "hashes", hashes, tokens: 83 } as const;
    const outcome = router.bestWorkerNow({ model: "m", prompt });
    expect(outcome).toMatchObject({ promptTokens: 83, terms: { deviceBlocks: 11 } });
    expect(outcome).toMatchObject({ terms: { additionalBlocks: 21 } });
  });
});
