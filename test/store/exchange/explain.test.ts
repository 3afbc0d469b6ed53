import { expect, test } from "bun:test";
import { LAYER_ALL } from "../../../src/core/index.ts";
import type { PullInsight } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { byDigest, byHash, inspect } from "../inspect/inspect-kit.ts";
import { chain } from "../names.ts";
import { namespaceKey, openStoreKit, PAGE } from "../store-kit.ts";
import { Neighbour } from "./neighbour.ts";

const PROMPT = chain("a/b/c/d/e");

describeNative("the explanation of a miss with peers below SSD", () => {
  /** The second host has the prompt up to "a/b/c/d"; the first one has "a". */
  async function open(pulls: PullInsight | null = null) {
    const here = openStoreKit({ arenaBytes: 16 * PAGE });
    const there = openStoreKit({ arenaBytes: 16 * PAGE });
    await there.engine().put(...PROMPT.slice(0, 4));
    await here.engine().put("a");
    const neighbour = new Neighbour(here.store, there.store);
    here.store.setPeers(neighbour);
    const { inspector } = inspect(here.store, [], pulls);
    const stack = new AsyncDisposableStack();
    stack.use(here);
    stack.use(there);
    return { here, neighbour, inspector, [Symbol.asyncDispose]: () => stack.disposeAsync() };
  }

  test("reports the blocks announced by peers, and why no more would be fetched", async () => {
    const told: number[] = [];
    const whyNot: PullInsight["whyNot"] = (_, blocks) => {
      told.push(blocks.length);
      return "no host that answers is known to have it";
    };
    await using it = await open({ whyNot });
    const { inspector } = it;
    const answer = await inspector.explain({ names: PROMPT.map(byDigest) });
    expect(answer.blocks.map(({ tier }) => tier)).toEqual(["ram", "peer", "peer", "peer", null]);
    expect(answer).toMatchObject({
      leading: 1,
      miss: { index: 1, why: { kind: "never_stored" } },
      peers: { promised: 3, whyNot: "no host that answers is known to have it" },
    });
    expect(told).toEqual([1]);
    // An explanation fetches nothing.
    expect(it.neighbour.fetched).toEqual([]);
  });

  test("reports the local tier of blocks that peers have too, also after a gap", async () => {
    await using it = await open();
    await it.here.engine().put("a/b/c");
    const answer = await it.inspector.explain({ names: PROMPT.slice(0, 4).map(byDigest) });
    expect(answer.blocks.map(({ tier }) => tier)).toEqual(["ram", "peer", "ram", "peer"]);
    expect(answer.peers).toEqual({ promised: 3, whyNot: null });
  });

  test("asks no peer about an engine hash, or if all blocks hit", async () => {
    await using it = await open();
    const { inspector, neighbour, here } = it;
    const hashed = await inspector.explain({ names: [byDigest("a"), byHash(5)] });
    expect(hashed.peers).toBeUndefined();
    const whole = await inspector.explain({ names: [byDigest("a")] });
    expect(whole.peers).toBeUndefined();
    expect(neighbour.promised).toEqual([]);
    here.store.setPeers(null);
    const alone = await inspector.explain({ names: PROMPT.map(byDigest) });
    expect(alone.peers).toBeUndefined();
  });

  test("covers prompts given by tokens", async () => {
    await using it = await open({ whyNot: () => "computing is sooner" });
    it.neighbour.claims = 2;
    const prompt = { blockTokens: 2, layer: LAYER_ALL, namespace: namespaceKey(1) };
    const answer = await it.inspector.explain({ ...prompt, tokens: new Uint32Array(7) });
    expect(answer.blocks.map(({ tier }) => tier)).toEqual(["peer", "peer", null]);
    expect(answer.peers).toEqual({ promised: 2, whyNot: "computing is sooner" });
    // A namespace unknown to this process has no number to query peers with.
    const foreign = { ...prompt, namespace: namespaceKey(9), tokens: new Uint32Array(4) };
    expect((await it.inspector.explain(foreign)).peers).toBeUndefined();
  });
});
