import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { FROM_CHECKOUT } from "../../app/agent-process.ts";
import { NatsServer, waitFor } from "../../support/index.ts";
import { Agent } from "../kit/agent.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { BLOCK_TOKENS, OFFLINE } from "../kit/model.ts";
import { Program } from "../kit/programs.ts";
import { Prompts } from "../kit/prompts.ts";
import { freePort } from "../kit/server.ts";
import { Vllm } from "../kit/vllm.ts";

/** Hang detectors. */
const ROUTER_MS = 120_000;
const WAIT_MS = 60_000;
const PROMPT_TOKENS = 1_500;
const FULL_TOKENS = PROMPT_TOKENS - (PROMPT_TOKENS % BLOCK_TOKENS);
/** Names of the agent and of its worker. */
const WORKER = "near";

interface Router extends AsyncDisposable {
  readonly proxy: string;
  readonly api: string;
}

/** A worker of the router's file. */
interface Worker {
  readonly name: string;
  readonly url: string;
  readonly role: "both" | "prefill" | "decode";
}

async function startRouter(
  context: LaneContext,
  nats: string,
  workers: readonly Worker[],
): Promise<Router> {
  const { folder, model } = context;
  const [proxy, api] = [freePort(), freePort()].map((port) => `127.0.0.1:${port}`);
  const name = `router-${workers.length}`;
  const config = join(folder, `${name}.toml`);
  const sections = workers.map(
    (worker) =>
      `[workers.${worker.name}]\nmodel = "tiny"\nurl = "${worker.url}"\n` +
      `role = "${worker.role}"\nblock_tokens = ${BLOCK_TOKENS}\n`,
  );
  writeFileSync(
    config,
    `[router]\nid = "${name}"\n[nats]\nurl = "${nats}"\n[api]\nlisten = "${api}"\n` +
      `[proxy]\nlisten = "${proxy}"\n[models.tiny]\nmodel = "tiny"\n` +
      `tokenizer = "${model.folder}"\n${sections.join("")}`,
  );
  const program = new Program({
    command: [...FROM_CHECKOUT, "router", "--config", config],
    ...{ cwd: folder, logPath: join(folder, `${name}.log`), env: { ...process.env, ...OFFLINE } },
  });
  const dispose = () => program[Symbol.asyncDispose]();
  const router = { proxy: `http://${proxy}`, api: `http://${api}`, [Symbol.asyncDispose]: dispose };
  const isReady = () => {
    return fetch(`${router.api}/readyz`).then(
      ({ ok }) => ok,
      () => false,
    );
  };
  await waitFor(isReady, ROUTER_MS, "the router being ready");
  return router;
}

async function post(url: string, body: unknown): Promise<Record<string, unknown>> {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`status ${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as Record<string, unknown>;
}

interface Loads {
  readonly loads: readonly {
    readonly held_tokens?: { readonly host: number; readonly disk: number };
  }[];
}

/** Tokens of the prompt that the router knows below the GPU. */
async function heldTokens(router: Router, tokens: readonly number[]): Promise<number> {
  const answer = await post(`${router.api}/v1/loads`, { model: "tiny", tokens });
  const [load] = (answer as unknown as Loads).loads;
  return (load?.held_tokens?.host ?? 0) + (load?.held_tokens?.disk ?? 0);
}

/** The router knows what a real vLLM stored, and a mark of a request becomes a pin. */
async function checkHints(
  { sheet, seed }: LaneContext,
  agent: Agent,
  front: Router,
  prompt: readonly number[],
): Promise<void> {
  await post(`${front.proxy}/v1/completions`, { model: "tiny", prompt, max_tokens: 1 });
  await agent.settled();
  const known = async () => (await heldTokens(front, prompt)) >= FULL_TOKENS;
  await waitFor(known, WAIT_MS, "the router knowing the blocks below the GPU").catch(() => null);
  sheet.atLeast("tokens known below the GPU", await heldTokens(front, prompt), FULL_TOKENS);

  const text = Array.from({ length: 600 }, (_, i) => `word${(i * 7 + seed) % 97}`).join(" ");
  const cache_control = { type: "ephemeral", ttl: "5m" };
  const messages = [
    { role: "system", content: [{ type: "text", text, cache_control }] },
    { role: "user", content: "Hello?" },
  ];
  const before = (await agent.process.status()).control.pins.blocks;
  await post(`${front.proxy}/v1/chat/completions`, { model: "tiny", messages, max_tokens: 1 });
  const pinned = async () => (await agent.process.status()).control.pins.blocks - before;
  await waitFor(async () => (await pinned()) > 0, WAIT_MS, "a pin").catch(() => null);
  sheet.atLeast("blocks pinned by a cache_control mark", await pinned(), 10);
}

interface Completion {
  readonly choices: readonly { readonly text: string }[];
}

/** The proxy prefills on one engine and decodes on the other. */
async function checkPrefill(
  { sheet }: LaneContext,
  front: Router,
  { reference, decoder }: { readonly reference: Vllm; readonly decoder: Vllm },
  prompt: readonly number[],
): Promise<void> {
  const body = { model: "tiny", prompt, max_tokens: 8, temperature: 0, ignore_eos: true };
  const answer = (await post(`${front.proxy}/v1/completions`, body)) as unknown as Completion;
  // `cached_tokens` of this answer are those of the prefill engine.
  const restored = (await decoder.metrics()).sum("vllm:external_prefix_cache_hits_total");
  sheet.atLeast("prompt tokens that the decode engine restored", restored, FULL_TOKENS);
  const same = (await post(`${reference.url}/v1/completions`, body)) as unknown as Completion;
  const [text, wanted] = [answer.choices[0]?.text, same.choices[0]?.text];
  sheet.check("the answer is that of one engine", text === wanted, text, `${wanted}`);
}

/** A router with its proxy in front of real vLLMs on one agent. */
export async function router(context: LaneContext): Promise<void> {
  const { folder, seed, model } = context;
  const prompts = new Prompts(seed + 700, model.vocabulary);
  const [first, second] = [prompts.tokens(PROMPT_TOKENS), prompts.tokens(PROMPT_TOKENS)];
  await using nats = await NatsServer.start();
  const config = { nats: { url: nats.tcpUrl } };
  await using agent = await Agent.start({ name: WORKER, folder, ramMib: 512, config });
  const hearth = { socket: agent.socket, extra: { "hearth.model": "tiny" } };
  await using server = await Vllm.start({ ...serverOf(context, "prefill"), hearth });
  {
    const worker = { name: WORKER, url: server.url, role: "both" } as const;
    await using front = await startRouter(context, nats.tcpUrl, [worker]);
    await checkHints(context, agent, front, first!);
  }
  await using decoder = await Vllm.start({ ...serverOf(context, "decode"), hearth });
  await using front = await startRouter(context, nats.tcpUrl, [
    { name: WORKER, url: server.url, role: "prefill" },
    { name: "decoder", url: decoder.url, role: "decode" },
  ]);
  await checkPrefill(context, front, { reference: server, decoder }, second!);
}
