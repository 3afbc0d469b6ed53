import { expect } from "bun:test";
import { ControlService, createCommander } from "../../../src/app/index.ts";
import { type Bus, createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { connectControl } from "../../../src/control/client/index.ts";
import { ControlSubscriber } from "../../../src/control/index.ts";
import { DIGEST_BYTES, seededRandom, type WorkerId } from "../../../src/core/index.ts";
import { createLogger, Health } from "../../../src/observability/index.ts";
import { PeerSource } from "../../../src/peers/index.ts";
import { type BlockNamer, PromptChain } from "../../../src/router/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { Namespaces } from "../../../src/store/index.ts";
import { configOf, NO_FACTS } from "../../config/arbitrary-config.ts";
import { named } from "../../store/lifecycle/lifecycle-kit.ts";
import { chain, digestOf } from "../../store/names.ts";
import { type KitTest, useSsdKit } from "../../store/ssd/use-kit.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { BLOCK, PolicyKit, tokensOf } from "./kit.ts";

const CONFIG = configOf(
  "[node]\nid = 'w1'\n[kv]\nram_gib = 1\n[control]\npin_share = 0.9\npin_share_owner = 0.9\n",
  NO_FACTS,
);
const WORKER = "w1" as WorkerId;
/** The best tier of a block, as `match` reports it. */
const [RAM, SSD] = [Tier.ram, Tier.ssd];
const STEP_MS = 500;

/** A prompt "a b c" has the blocks that the store's tests call "a", "a/b" and "a/b/c". */
function namerOf(texts: readonly string[]): BlockNamer {
  const known = new Map(texts.map((text) => [tokensOf(text).join(), text.split(" ")]));
  return {
    group: () => "test",
    chain(_target, { prompt }) {
      if (prompt.kind !== "tokens") return null;
      const words = known.get(prompt.tokens.join())!;
      const digests = new Uint8Array(words.length * DIGEST_BYTES);
      for (const [at, name] of chain(words.join("/")).entries()) {
        digests.set(digestOf(name), at * DIGEST_BYTES);
      }
      return new PromptChain("test", [{ blockTokens: BLOCK, digests }]);
    },
  };
}

/** The control plane of an agent over a real store, commanded over a bus. */
class AgentUnderPolicies implements AsyncDisposable {
  readonly #stack = new AsyncDisposableStack();
  readonly room: ControlService;
  readonly policies: PolicyKit;

  readonly #disk: KitTest["kit"];

  private constructor(disk: KitTest["kit"], room: ControlService, policies: PolicyKit) {
    this.#disk = disk;
    this.room = room;
    this.policies = policies;
    this.#stack.use(room);
    this.#stack.use(policies);
  }

  static async open(
    { host, kit }: KitTest,
    settings: ConstructorParameters<typeof PolicyKit>[0],
    texts: readonly string[],
  ): Promise<AgentUnderPolicies> {
    const { clock, store, incarnation } = kit;
    const logger = createLogger({ level: "error", format: "text", write: () => undefined, clock });
    const health = new Health({ clock, log: logger });
    const namespaces = new Namespaces();
    const own = { clock, store, incarnation, logger, health, native: host.native };
    const source = new PeerSource(namespaces);
    const room = await ControlService.open(
      { config: () => CONFIG, namespaces, source, ...own },
      null,
      null,
    );
    const hub = new LocalHub();
    const random = seededRandom(3);
    const buses: Bus[] = [0, 1].map(() => createLocalBus(hub, { clock, random }));
    await waitFor(() => buses.every(({ state }) => state.status === "connected"));
    const subscriber = new ControlSubscriber({
      ...{ bus: buses[0]!, plane: room.plane, events: room.events, workerId: WORKER, incarnation },
      ...{ version: "1.0.0", role: "purge", issuer: "nats" },
      ...{ publishReceipts: false, publishEvents: false },
    });
    const client = connectControl({ bus: buses[1]!, clock, random, issuer: "router-1" });
    const commander = createCommander({ client });
    const policies = new PolicyKit(settings, { clock, commander, namer: namerOf(texts) });
    const opened = new AgentUnderPolicies(kit, room, policies);
    for (const each of [...buses, subscriber, client]) opened.#stack.use(each);
    return opened;
  }

  /**
   * Passes time, and lets disk and agent do their work in between: what takes them a moment must
   * not seem to have taken seconds.
   */
  async pass(ms: number): Promise<void> {
    const { policies } = this.policies;
    for (let passed = 0; passed <= ms; passed += STEP_MS) {
      await this.#disk.pass(passed < ms ? STEP_MS : 0);
      await this.until(() => policies.counts.every(({ inFlight }) => inFlight === 0));
    }
  }

  async until(condition: () => boolean): Promise<void> {
    await waitFor(async () => {
      await this.#disk.clock.advanceAsync(1);
      return condition() && this.#disk.disk.inFlight === 0;
    });
  }

  /** Pins and leases outlive their requester: the test ends them. */
  async [Symbol.asyncDispose](): Promise<void> {
    const { holds } = this.room;
    for (const level of ["soft", "hard"] as const) {
      while (holds.relieve("ssd", "the test is over", level));
    }
    await this.#stack[Symbol.asyncDispose]();
  }
}

const SESSION = "sys a b c";
const BLOCKS = chain("sys/a/b/c");

describeNative("policies and a real agent", () => {
  const it = useSsdKit();

  it("an idle session moves to SSD under its lease and returns", {}, async (test) => {
    const settings = { idleSession: { mode: "on", idleMs: 5_000, ttlMs: 60_000 } } as const;
    const texts = [SESSION, "sys z", `${SESSION} d`];
    await using agent = await AgentUnderPolicies.open(test, settings, texts);
    const { policies: kit, room } = agent;
    const engine = test.kit.engine();
    await engine.put(...BLOCKS, "sys/z");
    await test.kit.settled();
    await kit.ask("s", SESSION, WORKER);
    const other = kit.route("t", "sys z", WORKER);
    await agent.pass(7_000);
    // The shared prefix stays.
    expect(engine.match(BLOCKS)).toEqual([4, RAM, SSD, SSD, SSD]);
    expect(room.holds.lease("session-s-0")).toMatchObject({ owner: "router" });
    const back = kit.route("s", `${SESSION} d`, WORKER);
    await agent.pass(0);
    expect(engine.match(BLOCKS)).toEqual([4, RAM, RAM, RAM, RAM]);
    expect(kit.actions.get(back)?.map(({ command, outcome }) => [command, outcome])).toEqual([
      ["Warm", "3 done"],
      ["RenewLease", "1 done"],
    ]);
    kit.free(other);
  });

  it("a lease that is not renewed expires and its blocks are removed", {}, async (test) => {
    const settings = { idleSession: { mode: "on", idleMs: 5_000, ttlMs: 60_000 } } as const;
    await using agent = await AgentUnderPolicies.open(test, settings, [SESSION, "sys z"]);
    const { policies: kit, room } = agent;
    const engine = test.kit.engine();
    await engine.put(...BLOCKS, "sys/z");
    await test.kit.settled();
    await kit.ask("s", SESSION, WORKER);
    kit.route("t", "sys z", WORKER);
    await agent.pass(7_000);
    kit[Symbol.dispose]();
    await test.kit.pass(60_000);
    await agent.until(() => room.holds.lease("session-s-0") === null);
    await agent.until(() => engine.match(BLOCKS)[0] === 1);
  });

  it("a marked prefix is pinned for its tenant", {}, async (test) => {
    const settings = { cacheControl: { mode: "on", ttlMs: 30_000 } } as const;
    await using agent = await AgentUnderPolicies.open(test, settings, [SESSION]);
    const { policies: kit, room } = agent;
    await test.kit.engine().put(...BLOCKS);
    await test.kit.settled();
    const id = kit.route("s", SESSION, WORKER);
    const marks = [{ promptTokens: 2 * BLOCK, ttlMs: null }];
    kit.policies.marks.cacheControl(id, "tenant", marks);
    kit.prefilled(id);
    await agent.pass(0);
    expect(room.lifecycle.holdersOf(test.kit.nodeOf("sys/a"))).toEqual([
      { kind: "pin", owner: "tenant" },
    ]);
    await test.kit.pass(31_000);
    const isPinned = () =>
      room.lifecycle.holdersOf(test.kit.nodeOf("sys/a")).some(({ kind }) => kind === "pin");
    await agent.until(() => !isPinned());
  });

  it("a rewritten prompt's old end is pruned, except for pinned blocks", {}, async (test) => {
    const settings = { contextRewrite: { mode: "on", settleMs: 5_000 } } as const;
    const texts = [`${SESSION} d e`, "sys x", "sys"];
    await using agent = await AgentUnderPolicies.open(test, settings, texts);
    const { policies: kit, room } = agent;
    const engine = test.kit.engine();
    const old = chain("sys/a/b/c/d/e");
    await engine.put(...old, "sys/x");
    await test.kit.settled();
    await room.lifecycle.pin([named("sys/a/b")], { owner: "tools", ttlMs: null });
    await kit.ask("s", `${SESSION} d e`, WORKER);
    const cause = await kit.ask("s", "sys x", WORKER);
    await agent.pass(7_000);
    expect(engine.match(old)[0]).toBe(3);
    expect(engine.match(["sys", "sys/x"])[0]).toBe(2);
    expect(kit.actions.get(cause)?.map(({ outcome }) => outcome)).toEqual(["3 done, 1 held"]);
  });

  it("a worker that lost its RAM is warmed from its SSD", {}, async (test) => {
    const settings = { coldWorker: { mode: "on" } } as const;
    await using agent = await AgentUnderPolicies.open(test, settings, [SESSION, "sys z"]);
    const { policies: kit } = agent;
    const engine = test.kit.engine();
    await engine.put(...BLOCKS, "sys/z");
    await test.kit.settled();
    await kit.ask("s", SESSION, WORKER);
    await kit.ask("t", "sys z", WORKER);
    test.kit.leaveRam();
    kit.joined(WORKER);
    await agent.pass(0);
    expect(engine.match(BLOCKS)).toEqual([4, RAM, RAM, RAM, RAM]);
    expect(kit.counts("cold_worker")).toMatchObject({
      ...{ commands: 1, receipts: 1, blocks: expect.objectContaining({ done: 5, missing: 0 }) },
    });
  });
});
