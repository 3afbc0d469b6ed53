import { expect, test } from "bun:test";
import { join } from "node:path";
import { digestOf } from "../store/names.ts";
import { describeNative, describePython, waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { AgentProcess, type AgentProcessOptions, FROM_CHECKOUT } from "./agent-process.ts";

const MANAGER = ["python3", join(import.meta.dir, "keeping-manager.py"), ...FROM_CHECKOUT];
const BLOCKS = ["a", "a/b", "a/b/c", "x"];

/** An agent under a manager that keeps descriptors, with some blocks in RAM. */
async function started(options: AgentProcessOptions = {}): Promise<AgentProcess> {
  const agent = await AgentProcess.start({ command: MANAGER, ...options });
  await using engine = await agent.connect();
  await engine.put(...BLOCKS);
  return agent;
}

/** Has the manager restart the agent, and waits until it serves again. */
async function restarted(agent: AgentProcess, signal: "SIGUSR1" | "SIGUSR2"): Promise<void> {
  const from = agent.log.length;
  agent.process.kill(signal);
  await agent.logged("arena complete", from);
  await agent.logged("agent ready", from);
}

async function urlOf(agent: AgentProcess): Promise<string> {
  await agent.logged("api listening");
  return agent.log.findLast(({ message }) => message === "api listening")!.url as string;
}

async function send(agent: AgentProcess, command: object): Promise<unknown> {
  const init = { method: "POST", body: JSON.stringify(command), keepalive: false };
  return (await fetch(`${await urlOf(agent)}/v1/commands`, init)).json();
}

interface Pin {
  readonly id: number;
  readonly owner: string;
  readonly blocks: number;
  readonly remaining_seconds: number | null;
}

async function pins(agent: AgentProcess): Promise<Pin[]> {
  const answer = await fetch(`${await urlOf(agent)}/v1/pins`, { keepalive: false });
  return ((await answer.json()) as { pins: Pin[] }).pins;
}

const many = (count: number, prefix: string) =>
  Array.from({ length: count }, (_, i) => `${prefix}${i}`);

async function found(agent: AgentProcess): Promise<string[]> {
  await using engine = await agent.connect();
  return await engine.get(...BLOCKS);
}

function said(agent: AgentProcess, message: string): string[] {
  return agent.log.filter((line) => line.message.startsWith(message)).map(({ message: m }) => m);
}

const ALL = BLOCKS.map(() => "ok");
const NONE = BLOCKS.map(() => "miss");

describeNative("RAM over a restart", () => {
  describePython("under a manager that keeps descriptors", () => {
    test("inherited RAM is registered with the GPU drivers again", async () => {
      const gpu = { library: standIn("libcuda.so.1").path };
      await using agent = await started({ config: { gpu } });
      const status = async () => (await fetch(`${await urlOf(agent)}/v1/status`)).json();
      const isRegistered = async () => {
        const { gpu: now, arena } = (await status()) as Record<string, Record<string, unknown>>;
        return now?.registered_bytes === arena?.bytes;
      };
      await waitFor(isRegistered);
      await restarted(agent, "SIGUSR1");
      expect(said(agent, "RAM of the previous process taken over")).toHaveLength(1);
      await waitFor(isRegistered);
      expect(await found(agent)).toEqual(ALL);
      expect(agent.log.filter(({ level }) => level === "error")).toEqual([]);
    });

    test("planned restarts take over all RAM repeatedly", async () => {
      await using agent = await started();
      for (let round = 1; round <= 3; round++) {
        await restarted(agent, "SIGUSR1");
        expect(said(agent, "RAM of the previous process taken over")).toHaveLength(round);
        expect(await found(agent)).toEqual(ALL);
      }
      const kept = agent.log.filter(({ message }) => message.startsWith("manager"));
      expect(kept.map((line) => line.kept)).toEqual(
        Array(3).fill(["hearth-arena", "hearth-record"]),
      );
    });

    test("a planned one keeps pins and leases, which then keep their blocks", async () => {
      await using agent = await started();
      const keys = (...names: string[]) => names.map((name) => digestOf(name).toHex());
      const pinned = await send(agent, { type: "Cache", block_keys: keys("a/b"), pin: true });
      expect(pinned).toMatchObject({ status: "ok", durable: false });
      const timed = { block_keys: keys("x"), pin: true, ttl_seconds: 3_600, owner: "team" };
      await send(agent, { type: "Cache", ...timed });
      const before = await pins(agent);
      expect(before.map(({ owner }) => owner)).toEqual(["local", "team"]);
      for (let round = 1; round <= 2; round++) {
        await restarted(agent, "SIGUSR1");
        const after = await pins(agent);
        const what = ({ id, owner, blocks }: Pin) => ({ id, owner, blocks });
        expect(after.map(what)).toEqual(before.map(what));
        const [ever, hour] = after.map(({ remaining_seconds }) => remaining_seconds);
        expect(ever).toBeNull();
        expect(hour!).toBeLessThan(before[1]!.remaining_seconds!);
        expect(hour!).toBeGreaterThan(3_500);
      }
      expect(said(agent, "pins and leases restored")).toHaveLength(2);
      await using engine = await agent.connect();
      for (let i = 0; i < 12; i++) await engine.put(...many(400, `flood-${i}-`));
      expect(await engine.get("a", "a/b", "x")).toEqual(["ok", "ok", "ok"]);
      expect(await engine.get("a/b/c")).toEqual(["miss"]);
    });

    test("a killed agent hands nothing over and leaves no memory behind", async () => {
      await using agent = await started();
      await restarted(agent, "SIGUSR1");
      await restarted(agent, "SIGUSR2");
      expect(await found(agent)).toEqual(NONE);
      const kept = agent.log.filter(({ message }) => message.startsWith("manager"));
      expect(kept.at(-1)!.kept).toEqual([]);
    });

    test("a restart with another RAM size drops the inherited RAM", async () => {
      await using agent = await started();
      agent.configure({ kv: { ram_gib: 32 / 1_024 } });
      await restarted(agent, "SIGUSR1");
      const dropped = agent.log.find((line) => line.message.endsWith("previous process dropped"));
      expect(dropped!.why).toBe("kv.ram_gib has changed");
      expect(await found(agent)).toEqual(NONE);
    });

    test("a restart with handover disabled neither stores nor inherits RAM", async () => {
      await using agent = await started({ config: { kv: { ram_handover: false } } });
      await restarted(agent, "SIGUSR1");
      expect(await found(agent)).toEqual(NONE);
      const kept = agent.log.filter(({ message }) => message.startsWith("manager"));
      expect(kept.at(-1)!.kept).toEqual([]);
    });

    test("slots still referenced by an engine at the deadline prevent the handover", async () => {
      await using agent = await started();
      await using engine = await agent.connect();
      await engine.acquire("a");
      const from = agent.log.length;
      agent.process.kill("SIGUSR1");
      // The drain has begun: who asks twice does not want to wait.
      await agent.logged("agent stopping", from);
      agent.process.kill("SIGUSR1");
      await agent.logged("agent ready", from);
      expect(await found(agent)).toEqual(NONE);
    });
  });
});
