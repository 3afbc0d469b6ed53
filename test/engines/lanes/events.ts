import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { FROM_CHECKOUT } from "../../app/agent-process.ts";
import { waitFor } from "../../support/index.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { BLOCK_TOKENS, OFFLINE } from "../kit/model.ts";
import { Program } from "../kit/programs.ts";
import { Prompts } from "../kit/prompts.ts";
import { say } from "../kit/say.ts";
import { freePort } from "../kit/server.ts";
import { Vllm } from "../kit/vllm.ts";

/** Hang detector. */
const WAIT_MS = 180_000;
/** Few enough that every scenario evicts. */
const CACHE_BLOCKS = 96;
const LENGTH_MAX = 1_024;
/** Batches that the engine keeps for replay. */
const BUFFER_STEPS = 20;
/** Blocks of the router's own settings. */
const ROUTER_BLOCK = 16;
const WORKER = "w1";
/** Time without a new event after which the engine has published all that it will. */
const SETTLE_MS = 100;
/** Makes vLLM announce again the blocks that a request reuses. */
const FULL = { vllm_xargs: { kv_cache_report_mode: "full" } };

interface Ports {
  readonly events: number;
  readonly replay: number;
}

interface WorkerReport {
  readonly known: boolean;
  readonly events: { readonly events: number } | null;
}

/** A router in front of one vLLM, without NATS. */
class FrontRouter implements AsyncDisposable {
  readonly #program: Program;
  readonly #api: string;

  private constructor({ folder }: LaneContext, name: string, worker: string) {
    const api = `127.0.0.1:${freePort()}`;
    const state = join(folder, `${name}-state`);
    mkdirSync(state, { recursive: true });
    const config = join(folder, `${name}.toml`);
    writeFileSync(
      config,
      `[router]\nid = "${name}"\nblock_tokens = ${ROUTER_BLOCK}\n[api]\nlisten = "${api}"\n` +
        `[events]\nstate_dir = "${state}"\nstate_every = "1s"\n[workers.${WORKER}]\n${worker}`,
    );
    this.#api = `http://${api}`;
    this.#program = new Program({
      command: [...FROM_CHECKOUT, "router", "--config", config],
      ...{ cwd: folder, logPath: join(folder, `${name}.log`), env: { ...process.env, ...OFFLINE } },
    });
  }

  static async start(context: LaneContext, name: string, worker: string): Promise<FrontRouter> {
    const router = new FrontRouter(context, name, worker);
    const isReady = () =>
      fetch(`${router.#api}/readyz`).then(
        ({ ok }) => ok,
        () => false,
      );
    await waitFor(isReady, WAIT_MS, "the router being ready");
    return router;
  }

  async text(path: string): Promise<string> {
    return (await fetch(`${this.#api}${path}`, { keepalive: false })).text();
  }

  async #worker(): Promise<WorkerReport> {
    const { workers } = JSON.parse(await this.text("/v1/workers")) as { workers: WorkerReport[] };
    if (workers[0] === undefined) throw new Error("the router has no worker");
    return workers[0];
  }

  async isKnown(): Promise<boolean> {
    return (await this.#worker()).known;
  }

  /** Waits until the engine says nothing new. */
  async settled(): Promise<void> {
    let last = -1;
    await waitFor(
      async () => {
        const events = (await this.#worker()).events?.events ?? 0;
        if (events === last) return true;
        last = events;
        await Bun.sleep(SETTLE_MS);
        return false;
      },
      WAIT_MS,
      "the events being quiet",
    );
  }

  /** Tokens of a prompt that a request would reuse, and whether that is all of them. */
  async overlap(tokens: readonly number[]): Promise<{ tokens: number; known: boolean }> {
    const overrides = { mode: "direct", worker: WORKER };
    const body = { model: "tiny", tokens, overrides };
    const answer = await fetch(`${this.#api}/v1/route`, {
      method: "POST",
      body: JSON.stringify(body),
      keepalive: false,
    });
    if (!answer.ok) throw new Error(`status ${answer.status}: ${await answer.text()}`);
    const { known, terms } = (await answer.json()) as {
      known: boolean;
      terms: { device_blocks: number };
    };
    const most = Math.floor((tokens.length - 1) / BLOCK_TOKENS) * BLOCK_TOKENS;
    return { known, tokens: Math.min(terms.device_blocks * ROUTER_BLOCK, most) };
  }

  async stop(): Promise<void> {
    await this.#program.stop();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#program[Symbol.asyncDispose]();
  }
}

/** Requests of all scenarios: prompts that share beginnings, and answers that fill blocks. */
class Load {
  readonly #prompts: Prompts;
  readonly #systems: readonly number[][];
  readonly #chats: number[][] = [];

  constructor(seed: number, vocabulary: number) {
    this.#prompts = new Prompts(seed, vocabulary);
    this.#systems = Array.from({ length: 3 }, () => this.#prompts.tokens(200));
  }

  next(): { prompt: number[]; answer: number } {
    const answer = this.#prompts.pick([1, 1, 2, 40]);
    const before =
      this.#chats.length > 0 && this.#prompts.between(0, 1) === 0
        ? this.#prompts.pick(this.#chats)
        : this.#prompts.pick(this.#systems);
    const kept = before.length > 700 ? this.#prompts.pick(this.#systems) : before;
    return { prompt: [...kept, ...this.#prompts.tokens(this.#prompts.between(1, 90))], answer };
  }

  /** The next turn of a chat begins with this one. */
  keep(prompt: readonly number[], answer: readonly number[]): void {
    this.#chats.push([...prompt, ...answer]);
    if (this.#chats.length > 8) this.#chats.shift();
  }
}

interface Tally {
  requests: number;
  hits: number;
  unknown: number;
  /** Of the last half: knowledge grows. */
  unknownLate: number;
  mismatches: number;
  /** Answers that claim more than there was, whether or not all was known. */
  excess: number;
}

async function ask(engine: Vllm, load: Load): Promise<void> {
  const { prompt, answer } = load.next();
  const { steps } = await engine.ask({ prompt, tokens: answer });
  load.keep(
    prompt,
    steps.map(({ token }) => token),
  );
}

/** Compares the router's overlap with what the engine then reuses. */
async function compare(
  { sheet, isQuick }: LaneContext,
  scenario: string,
  { router, engine, load }: { router: FrontRouter; engine: Vllm; load: Load },
  extraOf: (request: number) => Readonly<Record<string, unknown>> = () => ({}),
): Promise<Tally> {
  const requests = isQuick ? 20 : 120;
  const tally = { requests, hits: 0, unknown: 0, unknownLate: 0, mismatches: 0, excess: 0 };
  const wrong: string[] = [];
  for (let request = 0; request < requests; request++) {
    await router.settled();
    const { prompt, answer } = load.next();
    const found = await router.overlap(prompt);
    const extra = extraOf(request);
    const { steps, cachedTokens: truth } = await engine.ask({ prompt, tokens: answer, extra });
    load.keep(
      prompt,
      steps.map(({ token }) => token),
    );
    if (truth > 0) tally.hits++;
    if (found.tokens > truth) tally.excess++;
    if (!found.known) {
      tally.unknown++;
      if (request >= requests / 2) tally.unknownLate++;
    } else if (found.tokens !== truth) {
      tally.mismatches++;
      wrong.push(`request ${request}: router ${found.tokens}, vLLM ${truth}`);
    }
  }
  say(`${scenario}: ${JSON.stringify(tally)} ${wrong.slice(0, 5).join("; ")}`);
  sheet.figure(scenario, tally);
  sheet.atMost(`${scenario}: answers that differ from vLLM's cached_tokens`, tally.mismatches, 0);
  sheet.atMost(`${scenario}: answers above vLLM's cached_tokens`, tally.excess, 0);
  return tally;
}

/** Overlap of a router that follows a real vLLM, against vLLM's own `cached_tokens`. */
export async function events(context: LaneContext): Promise<void> {
  const { sheet, seed, model } = context;
  const ports = { events: freePort(), replay: freePort() };
  const load = new Load(seed + 900, model.vocabulary);
  await using engine = await Vllm.start({
    ...serverOf(context, "events"),
    blocks: CACHE_BLOCKS,
    lengthMax: LENGTH_MAX,
    // Blocks are what is compared: compiled kernels would only make the start longer.
    args: ["--enforce-eager", "--kv-events-config", JSON.stringify(configOf(ports))],
  });
  const tallies = [await wrongBlockSize(context, engine, load, ports)];
  tallies.push(...(await lateAndRestarted(context, engine, load)));
  const requests = tallies.reduce((sum, tally) => sum + tally.requests, 0);
  const hits = tallies.reduce((sum, tally) => sum + tally.hits, 0);
  sheet.atLeast("requests that reused blocks", hits, requests / 4);
  if (!context.isQuick) sheet.atLeast("requests", requests, 500);
}

function configOf({ events: port, replay }: Ports) {
  return {
    ...{ enable_kv_cache_events: true, publisher: "zmq", buffer_steps: BUFFER_STEPS },
    ...{ endpoint: `tcp://*:${port}`, replay_endpoint: `tcp://*:${replay}` },
  };
}

async function wrongBlockSize(
  context: LaneContext,
  engine: Vllm,
  load: Load,
  { events: port, replay }: Ports,
): Promise<Tally> {
  const places = `events = "tcp://127.0.0.1:${port}"\nreplay = "tcp://127.0.0.1:${replay}"\n`;
  const worker = `model = "tiny"\nblock_tokens = ${BLOCK_TOKENS / 2}\n${places}`;
  await using router = await FrontRouter.start(context, "wrong-size", worker);
  const tally = await compare(context, "wrong block size", { router, engine, load });
  const health = await router.text("/healthz");
  const code = "ROUTER_BLOCK_TOKENS";
  context.sheet.check("the wrong size is a health code", health.includes(code), health, code);
  return tally;
}

/** The worker is known by its URL alone: the engine says everything else. */
async function lateAndRestarted(context: LaneContext, engine: Vllm, load: Load): Promise<Tally[]> {
  const { sheet } = context;
  const worker = `url = "${engine.url}"\n`;
  // The buffer has wrapped, and the cache holds what was stored before.
  for (let request = 0; request < BUFFER_STEPS; request++) await ask(engine, load);
  const tallies: Tally[] = [];
  {
    await using router = await FrontRouter.start(context, "late", worker);
    const late = await compare(context, "late router", { router, engine, load });
    tallies.push(late);
    sheet.atMost("late router: unknown in the second half", late.unknownLate, late.requests / 4);
    await router.settled();
    await router.stop();
  }
  // What was published meanwhile is in the buffer.
  for (let request = 0; request < 3; request++) await ask(engine, load);
  await using router = await FrontRouter.start(context, "late", worker);
  const parts = { router, engine, load };
  tallies.push(await compare(context, "router restarted", parts));
  const isFull = (request: number) => (request % 2 === 0 ? FULL : {});
  tallies.push(await compare(context, "report mode full", parts, isFull));
  await engine.restart("kill");
  const isCounted = async () => {
    const counted = (await router.text("/metrics")).includes('resyncs_total{kind="incarnation"} 1');
    return counted && (await router.isKnown());
  };
  await waitFor(isCounted, WAIT_MS, "the router counting the restart and knowing the engine");
  const restarted = await compare(context, "engine restarted", parts);
  sheet.atMost("engine restarted: unknown", restarted.unknown, 0);
  tallies.push(restarted);
  return tallies;
}
