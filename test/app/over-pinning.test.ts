import { expect, test } from "bun:test";
import { join } from "node:path";
import { createHandleBatch } from "../../src/store/index.ts";
import type { Engine, Handle } from "../engine/engine.ts";
import { batchOf, digestOf } from "../store/names.ts";
import { describeNative, waitFor, withTempDir } from "../support/index.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

const MIB = 2 ** 20;
/** As long as a slot: RAM of 1 MiB holds 128 of them, SSD of 1 MiB 85. */
const BYTES = 8_192;
const SLOTS = 128;
const TIMEOUT_MS = 60_000;
const CONFIG: ConfigKeys = {
  kv: { ram_gib: 1 / 1_024, high_water: 1.0, policy: "lru" },
  control: { pin_share: 0.95, pin_share_owner: 0.95 },
};

const names = (prefix: string, count: number) =>
  Array.from({ length: count }, (_, i) => `${prefix}${i}`);
const hex = (name: string) => digestOf(name).toHex();

/** An agent under pressure: what is asked of it, and what it says of that. */
class Crowd implements AsyncDisposable {
  readonly agent: AgentProcess;
  readonly engine: Engine;
  /** Kept by the engine, so that no later block takes their place. */
  readonly #held: Handle[] = [];

  private constructor(agent: AgentProcess, engine: Engine) {
    this.agent = agent;
    this.engine = engine;
  }

  static async start(config: ConfigKeys): Promise<Crowd> {
    const agent = await AgentProcess.start({ config });
    return new Crowd(agent, await agent.connect());
  }

  /** Stores blocks one by one; each is taken at once, or as soon as the SSD has written. */
  async put(blocks: readonly string[]): Promise<void> {
    for (const name of blocks) {
      const isIn = async () => (await this.engine.put({ name, bytes: BYTES }))[0] !== "full";
      await waitFor(isIn, TIMEOUT_MS, `room for ${name}`);
    }
  }

  async putAndHold(blocks: readonly string[]): Promise<void> {
    for (const name of blocks) {
      await this.put([name]);
      const [handle] = await this.engine.acquire(name);
      expect(handle).toMatchObject({ name, outcome: "ok" });
      this.#held.push(handle!);
    }
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests look at what they name
  async command(body: Record<string, unknown>): Promise<any> {
    const url = (await this.agent.logged("api listening")).url as string;
    const response = await fetch(`${url}/v1/commands`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    return response.json();
  }

  pin(owner: string, blocks: readonly string[]) {
    return this.command({ type: "Cache", block_hashes: blocks.map(hex), pin: true, owner });
  }

  async openSessions(blocks: readonly string[]): Promise<void> {
    for (const [i, name] of blocks.entries()) {
      const out = createHandleBatch(1);
      await this.engine.client.sessionCommit(BigInt(i + 1), batchOf([name]), out);
      expect(out.outcome[0]).toBe(0);
    }
  }

  async relieved(): Promise<{ hold: string; owner: string; tier: string; blocks: number }[]> {
    // biome-ignore lint/suspicious/noExplicitAny: tests look at what they name
    const { events } = (await (await this.agent.get("/v1/events?limit=1000")).json()) as any;
    return events.filter(({ kind }: { kind: string }) => kind === "hold_relieved");
  }

  /** Events, log, metrics and health tell of so many holds that were ended for room. */
  async expectTold(count: number): Promise<void> {
    expect(await this.relieved()).toHaveLength(count);
    expect(await this.agent.metric("hearth_holds_ended_total", 'how="relieved"')).toBe(count);
    const lines = this.agent.log.filter(({ message }) => message.startsWith("pin evicted"));
    expect(lines).toHaveLength(count);
    for (const line of lines) expect(line.why).toContain("blocks in RAM are protected");
    const find = async () => {
      const { health } = await this.agent.status();
      return health.find(({ code }: { code: string }) => code === "KV_PINS_RELIEVED");
    };
    const problem = await waitFor(find, TIMEOUT_MS, "the health code");
    expect(problem.details).toContain("pins and leases evicted for space since start");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.engine[Symbol.asyncDispose]();
    await this.agent[Symbol.asyncDispose]();
  }
}

describeNative("over-pinning an agent", () => {
  test(
    "without SSD, pins beyond the budget are rejected with figures and new blocks still fit",
    async () => {
      await using crowd = await Crowd.start(CONFIG);
      const blocks = names("p", SLOTS);
      await crowd.put(blocks);
      // 0.95 of 1 MiB are 121 blocks: the last of 16 pins has room for one of its eight.
      const receipts = [];
      for (let i = 0; i < SLOTS; i += 8) {
        receipts.push(await crowd.pin(`owner-${i / 8}`, blocks.slice(i, i + 8)));
      }
      expect(receipts.slice(0, 15).every(({ status }) => status === "ok")).toBe(true);
      const last = receipts[15];
      expect(last).toMatchObject({
        status: "partial",
        counts: { done: 1, rejected: 7 },
        budget: {
          capacity_bytes: MIB,
          host_budget_bytes: Math.floor(0.95 * MIB),
          host_used_bytes: 121 * BYTES,
        },
      });
      expect(last.blocks[7].reason).toBe("budget: 968KiB of 972.8KiB kept, 8KiB more requested");
      const rest = blocks.slice(121);
      const soft = { type: "Cache", block_hashes: rest.slice(0, 4).map(hex), retain: 50 };
      expect(await crowd.command({ ...soft, owner: "soft" })).toMatchObject({ status: "ok" });
      await crowd.openSessions(rest.slice(4));
      const paused = { type: "Pause", block_hashes: [hex("p0")], ttl_seconds: 60, lease_id: "l" };
      const refused = await crowd.command(paused);
      expect(refused.blocks[0].reason).toStartWith("no_ssd:");
      // Nothing in RAM may go now. Soft pins go first, then sessions, then pins, the oldest first.
      await crowd.putAndHold(names("soft", 4));
      expect(await crowd.relieved()).toMatchObject([{ hold: "retain", owner: "soft", blocks: 4 }]);
      await crowd.putAndHold(names("session", 3));
      expect((await crowd.agent.status()).sessions).toBe(0);
      expect(await crowd.relieved()).toHaveLength(1);
      await crowd.putAndHold(names("pin", 16));
      const pins = (await crowd.relieved()).slice(1);
      expect(pins.map(({ owner, tier }) => `${owner} ${tier}`)).toEqual([
        "owner-0 ram",
        "owner-1 ram",
      ]);
      expect(await crowd.engine.match("p0")).toBe(0);
      expect(await crowd.engine.match("p16")).toBe(1);
      await crowd.expectTold(3);
    },
    TIMEOUT_MS,
  );

  test(
    "with an SSD full of pins, pins in RAM are evicted for space",
    () =>
      withTempDir(async (dir) => {
        const ssd = { ssd_dir: join(dir, "ssd"), ssd_gib: 1 / 1_024 };
        await using crowd = await Crowd.start({ ...CONFIG, kv: { ...CONFIG.kv, ...ssd } });
        // Ten pins and a lease fill the SSD but for one file; fifteen pins fill RAM after that.
        const below = names("s", 80);
        for (let i = 0; i < below.length; i += 8) {
          await crowd.put(below.slice(i, i + 8));
          expect(await crowd.pin("below", below.slice(i, i + 8))).toMatchObject({ durable: true });
        }
        await crowd.put(names("night", 5));
        const night = { block_hashes: names("night", 5).map(hex), lease_id: "night" };
        const paused = await crowd.command({ type: "Pause", ...night, ttl_seconds: 3_600 });
        expect(paused).toMatchObject({ status: "ok", durable: true });
        const above = names("r", 120);
        for (let i = 0; i < above.length; i += 8) {
          await crowd.put(above.slice(i, i + 8));
          const receipt = await crowd.pin(`above-${i / 8}`, above.slice(i, i + 8));
          expect(receipt.counts).toMatchObject({ deferred: 8, rejected: 0 });
        }
        const sessions = names("session", 8);
        await crowd.put(sessions);
        await crowd.openSessions(sessions);
        await crowd.putAndHold(names("new", 8 + 16));
        expect((await crowd.agent.status()).sessions).toBe(0);
        const relieved = await crowd.relieved();
        expect(relieved.map(({ owner, tier }) => `${owner} ${tier}`)).toEqual([
          "above-0 ram",
          "above-1 ram",
        ]);
        await crowd.expectTold(2);
        // What SSD keeps was in nobody's way.
        expect(await crowd.agent.metric("hearth_holds", 'kind="lease"')).toBe(1);
        expect(await crowd.engine.match("s0")).toBe(1);
        expect(await crowd.engine.match("night0")).toBe(1);
      }),
    TIMEOUT_MS,
  );
});
