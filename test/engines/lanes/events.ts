import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { FROM_CHECKOUT } from "../../app/agent-process.ts";
import { waitFor } from "../../support/index.ts";
import type { Question } from "../kit/client.ts";
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
/** One request that stores second copies comes with this many that are compared. */
const ODD_EVERY = 10;
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
        `[events]\nstate_dir = "${state}"\n[workers.${WORKER}]\n${worker}`,
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

  /** A request that stores second copies of what may be cached, as an announcement would look. */
  odd(): Question {
    const system = this.#prompts.pick(this.#systems);
    const isShort = this.#prompts.between(0, 1) === 0;
    if (isShort) return { prompt: system.slice(0, BLOCK_TOKENS), tokens: 1 };
    return { prompt: system, tokens: 1, extra: { prompt_logprobs: 0 } };
  }

  /** The next turn of a chat begins with this one. */
  keep(prompt: readonly number[], answer: readonly number[]): void {
    this.#chats.push([...prompt, ...answer]);
    if (this.#chats.length > 8) this.#chats.shift();
  }
}

interface Tally {
  requests: number;
  /** Those before which the router said that all is known: compared exactly. */
  known: number;
  /** Of them, those that reused blocks. */
  hits: number;
  /** Requests of the last half before which not all was known: knowledge grows. */
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

interface CompareParts {
  readonly router: FrontRouter;
  readonly engine: Vllm;
  readonly load: Load;
  /**
   * Also sends requests that store second copies. Not to a router that is late: copies that may be
   * there only do not account for the cache, so it would stay without knowledge.
   */
  readonly hasOdd?: boolean;
}

/** Compares the router's overlap with what the engine then reuses. */
async function compare(
  { sheet, isQuick }: LaneContext,
  scenario: string,
  { router, engine, load, hasOdd = false }: CompareParts,
  extraOf: (request: number) => Readonly<Record<string, unknown>> = () => ({}),
): Promise<Tally> {
  const requests = isQuick ? 20 : 150;
  const tally = { requests, known: 0, hits: 0, unknownLate: 0, mismatches: 0, excess: 0 };
  const wrong: string[] = [];
  for (let request = 0; request < requests; request++) {
    if (hasOdd && request % ODD_EVERY === 0) await engine.ask(load.odd());
    await router.settled();
    const { prompt, answer } = load.next();
    const found = await router.overlap(prompt);
    const extra = extraOf(request);
    const { steps, cachedTokens: truth } = await engine.ask({ prompt, tokens: answer, extra });
    load.keep(
      prompt,
      steps.map(({ token }) => token),
    );
    if (found.tokens > truth) tally.excess++;
    if (!found.known) {
      if (request >= requests / 2) tally.unknownLate++;
      continue;
    }
    tally.known++;
    if (truth > 0) tally.hits++;
    if (found.tokens === truth) continue;
    tally.mismatches++;
    wrong.push(`request ${request}: router ${found.tokens}, vLLM ${truth}`);
  }
  say(`${scenario}: ${JSON.stringify(tally)} ${wrong.slice(0, 5).join("; ")}`);
  sheet.figure(scenario, tally);
  sheet.atMost(`${scenario}: answers that differ from vLLM's cached_tokens`, tally.mismatches, 0);
  sheet.atMost(`${scenario}: answers above vLLM's cached_tokens`, tally.excess, 0);
  if (hasOdd) sheet.atLeast(`${scenario}: compared while known`, tally.known, requests / 2);
  else if (!isQuick) {
    sheet.atMost(`${scenario}: not known in the second half`, tally.unknownLate, requests / 10);
  }
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
  const known = tallies.reduce((sum, tally) => sum + tally.known, 0);
  const hits = tallies.reduce((sum, tally) => sum + tally.hits, 0);
  sheet.atLeast("requests compared that reused blocks", hits, known / 4);
  if (!context.isQuick) sheet.atLeast("requests compared while all was known", known, 500);
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
  const tally = await compare(context, "wrong block size", {
    ...{ router, engine, load, hasOdd: true },
  });
  const health = await router.text("/healthz");
  const code = "ROUTER_BLOCK_TOKENS";
  context.sheet.check("the wrong size is a health code", health.includes(code), health, code);
  return tally;
}

/** The worker is known by its URL alone: the engine says everything else. */
async function lateAndRestarted(context: LaneContext, engine: Vllm, load: Load): Promise<Tally[]> {
  const worker = `url = "${engine.url}"\n`;
  // The buffer has wrapped, and the cache holds what was stored before.
  for (let request = 0; request < BUFFER_STEPS; request++) await ask(engine, load);
  const tallies: Tally[] = [];
  {
    await using router = await FrontRouter.start(context, "late", worker);
    tallies.push(await compare(context, "late router", { router, engine, load }));
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
  tallies.push(await compare(context, "engine restarted", { ...parts, hasOdd: true }));
  return tallies;
}
