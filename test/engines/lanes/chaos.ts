import { join } from "node:path";
import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { quantile } from "../kit/compare.ts";
import { damageArena, damageFiles } from "../kit/damage.ts";
import { HostLoad } from "../kit/host-load.ts";
import { type LaneContext, type Sheet, serverOf } from "../kit/lane.ts";
import { connectorFigures } from "../kit/metrics.ts";
import { Prompts } from "../kit/prompts.ts";
import { say } from "../kit/say.ts";
import { SmallDisk } from "../kit/small-disk.ts";
import { questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";
import { WaitTimes } from "../kit/wait-times.ts";
import { type Known, Load, TOKENS_OUT } from "./chaos-load.ts";

const PROMPTS = 60;
/** Small tiers, so that blocks move through RAM and SSD all the time. */
const RAM_MIB = 160;
const SSD_MIB = 320;
const DISK_MIB = 384;
/** Blocks of the engine's own cache: little more than one request. */
const ENGINE_BLOCKS = 160;
const LENGTH_MAX = 4_096;
const WAIT_MAX_S = 0.1;
const WAIT_SHARE = 0.999;

/** Everything an event may act on. */
interface World {
  readonly agent: Agent;
  readonly server: Vllm;
  readonly load: Load;
  readonly disk: SmallDisk | string;
  readonly chance: Prompts;
  readonly waits: WaitTimes;
  readonly hostLoad: HostLoad;
}

type Event = (world: World) => Promise<void>;

async function pauseAgent({ agent }: World, ms: number): Promise<void> {
  agent.signal("SIGSTOP");
  await Bun.sleep(ms);
  agent.signal("SIGCONT");
}

const EVENTS: Readonly<Record<string, Event>> = {
  "agent killed": async ({ agent, chance }) => {
    await agent.kill();
    await Bun.sleep(chance.between(0, 3_000));
    await agent.start();
  },
  "agent restarted": async ({ agent }) => {
    await agent.end("SIGTERM");
    await agent.start();
  },
  "agent stopped briefly": (world) => pauseAgent(world, world.chance.between(20, 400)),
  "agent stopped": (world) => pauseAgent(world, world.chance.between(1_000, 6_000)),
  "disk full": async ({ disk }) => {
    if (typeof disk === "string") return;
    disk.fill();
    await Bun.sleep(6_000);
    disk.free();
  },
  "bits flipped on SSD": async ({ agent, chance }) => {
    damageFiles(agent.ssdFolder, 40, chance);
  },
  "bits flipped in RAM": async ({ agent, chance }) => {
    damageArena(agent.pid, 100, chance);
  },
  "engine killed": async ({ load, server, waits }) => {
    await waits.read(server);
    await load.during(() => server.restart("kill"));
  },
};

/** Each round plays every event once, damage three times. */
function round(chance: Prompts): string[] {
  const damage = ["bits flipped on SSD", "bits flipped in RAM"];
  return chance.shuffle([...Object.keys(EVENTS), ...damage, ...damage]);
}

async function playEvents(world: World, minutes: number): Promise<Record<string, number>> {
  const ends = performance.now() + minutes * 60_000;
  const played: Record<string, number> = {};
  let names: string[] = [];
  while (performance.now() < ends) {
    await Bun.sleep(world.chance.between(2_000, 6_000));
    if (names.length === 0) names = round(world.chance);
    const name = names.pop()!;
    say(`${name} after ${world.load.requests} requests`);
    await EVENTS[name]!(world);
    played[name] = (played[name] ?? 0) + 1;
  }
  return played;
}

async function knownAnswers(context: LaneContext, chance: Prompts): Promise<Known> {
  const sent = chance.mixed(context.isQuick ? 20 : PROMPTS, 200, 3_000);
  await using server = await Vllm.start(serverOf(context, "reference"));
  return { sent, answers: await askAll(server, questionsOf(sent, TOKENS_OUT), 1, "reference") };
}

function report(sheet: Sheet, world: World, played: Record<string, number>): void {
  const { load, waits, disk, hostLoad } = world;
  const { wrong, failed } = load;
  sheet.check("no wrong token", wrong.length === 0, wrong.slice(0, 10), "none");
  sheet.check("no failed request", failed.length === 0, failed.slice(0, 10), "none");
  sheet.atLeast(
    "waits beyond the predicted recompute time of at most 100 ms",
    waits.shareWithin(WAIT_MAX_S),
    WAIT_SHARE,
  );
  sheet.atLeast("requests that waited for Hearth", waits.count, 1);
  sheet.atLeast("prompt tokens restored", load.cachedTokens, 1);
  if (typeof disk === "string") sheet.figure("disk full", `skipped: ${disk}`);
  sheet.figure("events", played);
  sheet.figure("requests", load.requests);
  sheet.figure("requests cut off by the death of their engine", load.cut);
  sheet.figure("ties", load.ties);
  sheet.figure("share of prompt tokens restored", load.cachedTokens / load.promptTokens);
  sheet.figure("excess wait", { count: waits.count, maxSeconds: waits.max, ...waits.buckets() });
  sheet.figure("load average of the host during the waits", hostLoad.summary());
  sheet.figure("TTFT, ms", {
    p50: Math.round(quantile(load.firstTokenMs, 0.5)),
    p99: Math.round(quantile(load.firstTokenMs, 0.99)),
    max: Math.round(Math.max(...load.firstTokenMs)),
  });
}

/** Agent and engine are killed, stopped and damaged while requests run. */
export async function chaos(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model, minutes } = context;
  const chance = new Prompts(seed + 500, model.vocabulary);
  const known = await knownAnswers(context, chance);
  const ssdFolder = join(folder, "disk", "ssd");
  const disk = SmallDisk.mount(join(folder, "disk"), DISK_MIB);
  using _ = typeof disk === "string" ? undefined : disk;
  const sizes = { ramMib: RAM_MIB, ssdMib: SSD_MIB, ssdFolder };
  await using agent = await Agent.start({ name: "a", folder, ...sizes });
  const options = { ...serverOf(context, "engine"), blocks: ENGINE_BLOCKS, lengthMax: LENGTH_MAX };
  await using server = await Vllm.start({ ...options, hearth: { socket: agent.socket } });
  const load = new Load(server, known, chance);
  const waits = new WaitTimes();
  using hostLoad = new HostLoad();
  const world = { agent, server, load, disk, chance, waits, hostLoad };
  load.start();
  const played = await playEvents(world, minutes);
  await load.end();
  await waits.read(server);
  report(sheet, world, played);
  await agent.settled();
  const { engine } = await agent.process.status();
  sheet.check("no slot stays held", engine.slots_held === 0, engine.slots_held, "0");
  sheet.figure("connector", connectorFigures(await server.metrics()));
}
