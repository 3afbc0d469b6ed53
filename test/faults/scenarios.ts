import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findPython } from "../../scripts/lib/python.ts";
import { AgentProcess, type AgentProcessOptions, FROM_CHECKOUT } from "../app/agent-process.ts";
import type { Engine } from "../engine/engine.ts";
import { waitFor } from "../support/index.ts";
import { fillUp, mountAt } from "./mounts.ts";

export interface ScenarioOutcome {
  readonly violations: readonly string[];
  readonly figures?: Readonly<Record<string, number | string>>;
  readonly skipped?: string;
}

export interface ScenarioResult extends ScenarioOutcome {
  readonly name: string;
}

export interface Scenario {
  readonly name: string;
  run(): Promise<ScenarioOutcome>;
}

const HERE = import.meta.dir;
const FREEZABLE = [process.execPath, join(HERE, "freezable-agent.ts")];
const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

function agentOptions(
  command: readonly string[],
  folder: string,
  keys: Record<string, unknown> = {},
): AgentProcessOptions {
  const kv = { ssd_dir: join(folder, "ssd"), ssd_gib: 256 / 1_024, scrub_rate: "off", ...keys };
  return { command, folder, config: { kv } };
}

function confined(...limits: string[]): readonly string[] | string {
  const python = findPython();
  if (python.kind !== "ready") return python.why;
  return [python.path, join(HERE, "confine.py"), ...limits, "--", ...FROM_CHECKOUT];
}

async function withFolder<T>(use: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), "hearth-"));
  try {
    return await use(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Blocks go down to SSD and come up again, byte for byte; what did not, in words. */
async function goesDownAndUp(agent: AgentProcess): Promise<string[]> {
  await using engine = await agent.connect();
  const blocks = names(64);
  for (const block of blocks) await engine.put({ name: block, bytes: 65_536 });
  const written = async () => (await agent.status()).ssd.blocks === blocks.length;
  await waitFor(written, 20_000, "all blocks on SSD");
  // More than RAM holds, so that they leave it.
  for (const block of names(400, "y")) await engine.put({ name: block, bytes: 65_536 });
  const wrong: string[] = [];
  for (const block of blocks) {
    // RAM may be full of blocks that are still on their way down.
    const read = await waitFor(async () => {
      const [outcome] = await engine.get(block);
      return outcome === "full" ? null : outcome!;
    }, 10_000);
    if (read !== "ok") wrong.push(`${block} is ${read}`);
  }
  const hits = (await agent.status()).ssd.counters.read_blocks ?? 0;
  if (hits === 0) wrong.push("nothing came from SSD");
  return wrong;
}

type Status = Awaited<ReturnType<AgentProcess["status"]>>;

function codesOf(status: Status): string[] {
  return status.health.map(({ code }: { code: string }) => code);
}

function limitsAreTold(status: Status): string[] {
  const codes = codesOf(status);
  return codes.includes("KV_LIMITS") ? [] : [`health is ${codes.join(" ") || "sound"}`];
}

async function onConfinedHost(
  command: readonly string[] | string,
  judge: (status: Status) => string[],
): Promise<ScenarioOutcome> {
  if (typeof command === "string") return { violations: [], skipped: command };
  return withFolder(async (folder) => {
    const options = agentOptions(command, folder, { lock_memory: "try" });
    await using agent = await AgentProcess.start(options);
    const violations = judge(await agent.status());
    violations.push(...(await goesDownAndUp(agent)));
    return { violations };
  });
}

export const SCENARIOS: readonly Scenario[] = [
  {
    name: "io-uring-denied",
    run: () =>
      onConfinedHost(confined("--deny-io-uring"), (status) => {
        const violations = limitsAreTold(status);
        if (status.ssd.method !== "threads") violations.push(`the method is ${status.ssd.method}`);
        return violations;
      }),
  },
  {
    name: "io-uring-demanded-and-denied",
    async run() {
      const command = confined("--deny-io-uring");
      if (typeof command === "string") return { violations: [], skipped: command };
      return withFolder(async (folder) => {
        const options = agentOptions(command, folder, { ssd_io: "io_uring" });
        await using agent = new AgentProcess(options);
        const code = await agent.exited();
        const words = [...agent.words, ...agent.log.map((line) => JSON.stringify(line))].join("\n");
        const violations: string[] = [];
        if (code === 0) violations.push("it starts without the io_uring that was asked for");
        if (!/io_uring|disk/i.test(words)) violations.push(`it does not say why: ${words}`);
        return { violations };
      });
    },
  },
  {
    name: "memlock-too-small",
    run: () =>
      onConfinedHost(confined("--memlock", "65536"), (status) => {
        const violations = limitsAreTold(status);
        if (status.ssd.registered) violations.push("memory is registered above the limit");
        return violations;
      }),
  },
  { name: "no-o-direct", run: withoutDirect },
  { name: "index-full", run: withoutIndexSpace },
  { name: "frozen-disk", run: () => frozenDisk(30_000) },
];

const ROOT_ONLY = "only root may mount a file system";

function withoutDirect(): Promise<ScenarioOutcome> {
  return withFolder(async (folder) => {
    const environment = { HEARTH_TEST_PLAN: "open.probe:1:EINVAL" };
    const options = { ...agentOptions(FREEZABLE, folder), environment };
    await using agent = await AgentProcess.start(options);
    const status = await agent.status();
    const violations: string[] = [];
    if (status.ssd.direct) violations.push("it says that it goes past the page cache");
    if (!codesOf(status).includes("KV_SSD_BUFFERED")) violations.push("health does not tell");
    violations.push(...(await goesDownAndUp(agent)));
    return { violations };
  });
}

/** What the index cannot write is told, stops nothing, and is over when there is room. */
function withoutIndexSpace(): Promise<ScenarioOutcome> {
  return withFolder(async (folder) => {
    const dir = join(folder, "small");
    using mounted = mountAt(dir, "size=8m,mode=700");
    if (mounted === null) return { violations: [], skipped: ROOT_ONLY };
    const options = agentOptions(FROM_CHECKOUT, folder, { index_dir: join(dir, "index") });
    await using agent = await AgentProcess.start(options);
    const ballast = join(dir, "ballast");
    for (let bytes = 65_536; bytes >= 1; bytes >>= 1) fillUp(ballast, bytes);
    await using engine = await agent.connect();
    let round = 0;
    const isTold = async () => {
      await engine.put(...names(16, `${round++}-`).map((name) => ({ name, bytes: 4_096 })));
      await Bun.sleep(50);
      return codesOf(await agent.status()).includes("KV_INDEX");
    };
    await waitFor(isTold, 30_000, "KV_INDEX");
    const violations: string[] = [];
    const before = (await agent.status()).ssd.counters.written_blocks;
    const [put] = await engine.put({ name: "during", bytes: 4_096 });
    if (put !== "ok" && put !== "full") violations.push(`a write is ${put}`);
    const goesOn = async () => (await agent.status()).ssd.counters.written_blocks > before;
    if (put === "ok") await waitFor(goesOn, 10_000, "a block on SSD without an index");
    rmSync(ballast);
    const isOver = async () => !codesOf(await agent.status()).includes("KV_INDEX");
    await waitFor(isOver, 30_000, "the index at work again");
    await agent.kill("SIGTERM");
    return { violations };
  });
}

const HIT_BLOCK = "hot";
const WINDOW_MS = 1_000;

/** The middle of the p99 of each second of reading one block that RAM has, in milliseconds. */
async function hitP99Ms(engine: Engine, ms: number): Promise<{ p99Ms: number; wrong: number }> {
  const windows: number[] = [];
  const endMs = performance.now() + ms;
  let wrong = 0;
  while (performance.now() < endMs) {
    const samples: number[] = [];
    const windowEndMs = performance.now() + WINDOW_MS;
    while (performance.now() < windowEndMs) {
      const startMs = performance.now();
      const handles = await engine.acquire(HIT_BLOCK);
      samples.push(performance.now() - startMs);
      if (handles[0]!.outcome !== "ok" || !engine.proves(handles[0]!)) wrong++;
      else engine.release(handles);
      if (samples.length % 16 === 0) await Bun.sleep(1);
    }
    samples.sort((a, b) => a - b);
    windows.push(samples[Math.floor(samples.length * 0.99)]!);
  }
  windows.sort((a, b) => a - b);
  return { p99Ms: windows[windows.length >> 1]!, wrong };
}

/** Writes new blocks, and asks for ones that SSD alone has, until told to stop. */
async function bother(engine: Engine, cold: readonly string[], stop: AbortSignal) {
  const seen = new Map<string, number>();
  for (let i = 0; !stop.aborted; i++) {
    await engine.put({ name: `new${i}`, bytes: 65_536 });
    const [read] = await engine.get(cold[i % cold.length]!);
    seen.set(read!, (seen.get(read!) ?? 0) + 1);
    await Bun.sleep(20);
  }
  return seen;
}

/** RAM hits stay as fast while the disk hangs for `ms`, and the tier comes back by itself. */
export function frozenDisk(ms: number): Promise<ScenarioOutcome> {
  return withFolder(async (folder) => {
    const { config, ...rest } = agentOptions(FREEZABLE, folder);
    const options = { ...rest, config: { ...config, engine: { acquire_deadline: "500ms" } } };
    await using agent = await AgentProcess.start(options);
    await using engine = await agent.connect();
    await using other = await agent.connect();
    const cold = names(32);
    for (const block of cold) await engine.put({ name: block, bytes: 65_536 });
    await waitFor(async () => (await agent.status()).ssd.blocks === 32, 20_000, "blocks on SSD");
    for (const block of names(300, "y")) await engine.put({ name: block, bytes: 65_536 });
    // Of the same length as the others: an arena this small has slots of one size.
    const putHit = async () => (await engine.put({ name: HIT_BLOCK, bytes: 65_536 }))[0] === "ok";
    await waitFor(putHit, 20_000, "room in RAM");
    const [held] = await engine.acquire(HIT_BLOCK);
    const stop = new AbortController();
    const before = await during(stop, other, cold, () => hitP99Ms(engine, Math.min(ms, 8_000)));
    agent.process.kill("SIGUSR2");
    const frozen = await during(new AbortController(), other, cold, () => hitP99Ms(engine, ms));
    const health = codesOf(await agent.status());
    agent.process.kill("SIGUSR2");
    const isBack = async () => {
      const status = await agent.status();
      return !codesOf(status).includes("KV_SSD_HUNG") && status.ssd.writes_stopped === null;
    };
    await waitFor(isBack, 20_000, "the disk in use again");
    const after = await engine.get(...cold.slice(0, 8));
    engine.release([held!]);
    const violations: string[] = [];
    const p99 = `p99 of RAM hits: ${before.p99Ms.toFixed(3)} ms, ${frozen.p99Ms.toFixed(3)} frozen`;
    if (frozen.p99Ms > 2 * before.p99Ms) violations.push(p99);
    if (before.wrong + frozen.wrong > 0) violations.push("a block in RAM was not served right");
    for (const seen of [before.seen, frozen.seen]) {
      if (seen.has("wrong bytes")) violations.push("wrong bytes");
    }
    if (!health.includes("KV_SSD_HUNG")) violations.push(`health is ${health.join(" ")}`);
    if (after.includes("wrong bytes")) violations.push("wrong bytes after it");
    if (!after.includes("ok")) violations.push(`nothing comes from SSD after it: ${after}`);
    const figures = { seconds: ms / 1_000, p99_ms: before.p99Ms, p99_frozen_ms: frozen.p99Ms };
    return { violations, figures };
  });
}

async function during<T>(
  stop: AbortController,
  other: Engine,
  cold: readonly string[],
  work: () => Promise<T>,
): Promise<T & { seen: Map<string, number> }> {
  const bothering = bother(other, cold, stop.signal);
  const result = await work();
  stop.abort();
  return { ...result, seen: await bothering };
}
