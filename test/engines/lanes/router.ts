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
const PIN_MS = 60_000;
const PROMPT_TOKENS = 1_500;
const WORKER = "near";
/** Of the formulas of the router, whatever the blocks of the engine are. */
const ROUTER_BLOCK_TOKENS = 16;

interface Router extends AsyncDisposable {
  readonly proxy: string;
  readonly api: string;
}

async function startRouter(context: LaneContext, nats: string, engine: string): Promise<Router> {
  const { folder, model } = context;
  const [proxy, api] = [freePort(), freePort()].map((port) => `127.0.0.1:${port}`);
  const config = join(folder, "router.toml");
  writeFileSync(
    config,
    `[router]\nid = "front"\n[nats]\nurl = "${nats}"\n[api]\nlisten = "${api}"\n` +
      `[proxy]\nlisten = "${proxy}"\n[models.tiny]\nmodel = "tiny"\n` +
      `tokenizer = "${model.folder}"\nkv_hint_actions = "pin,retain"\n` +
      `[workers.${WORKER}]\nmodel = "tiny"\nurl = "${engine}"\nblock_tokens = ${BLOCK_TOKENS}\n`,
  );
  const program = new Program({
    command: [...FROM_CHECKOUT, "router", "--config", config],
    ...{ cwd: folder, logPath: join(folder, "router.log"), env: { ...process.env, ...OFFLINE } },
  });
  const dispose = () => program[Symbol.asyncDispose]();
  const router = { proxy: `http://${proxy}`, api: `http://${api}`, [Symbol.asyncDispose]: dispose };
  const isReady = () =>
    fetch(`${router.api}/readyz`).then(
      ({ ok }) => ok,
      () => false,
    );
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

/** A router with its proxy in front of a real vLLM: hints arrive, and blocks are known by name. */
export async function router(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model } = context;
  const prompts = new Prompts(seed + 700, model.vocabulary);
  await using nats = await NatsServer.start();
  const config = { nats: { url: nats.tcpUrl } };
  await using agent = await Agent.start({ name: WORKER, folder, ramMib: 512, config });
  const hearth = { socket: agent.socket, extra: { "hearth.model": "tiny" } };
  await using server = await Vllm.start({ ...serverOf(context, "engine"), hearth });
  await using front = await startRouter(context, nats.tcpUrl, server.url);

  const prompt = prompts.tokens(PROMPT_TOKENS);
  await post(`${front.proxy}/v1/completions`, { model: "tiny", prompt, max_tokens: 1 });
  await agent.settled();
  const full = Math.floor(PROMPT_TOKENS / BLOCK_TOKENS) * BLOCK_TOKENS;
  const known = async () => (await heldTokens(front, prompt)) >= full - ROUTER_BLOCK_TOKENS;
  await waitFor(known, PIN_MS, "the router knowing the blocks below the GPU").catch(() => null);
  sheet.atLeast("tokens known below the GPU", await heldTokens(front, prompt), full);

  const text = Array.from({ length: 600 }, (_, i) => `word${(i * 7 + seed) % 97}`).join(" ");
  const cache_control = { type: "ephemeral", ttl: "5m" };
  const messages = [
    { role: "system", content: [{ type: "text", text, cache_control }] },
    { role: "user", content: "Hello?" },
  ];
  const before = (await agent.process.status()).control.pins.blocks;
  await post(`${front.proxy}/v1/chat/completions`, { model: "tiny", messages, max_tokens: 1 });
  const pinned = async () => (await agent.process.status()).control.pins.blocks - before;
  await waitFor(async () => (await pinned()) > 0, PIN_MS, "a pin").catch(() => null);
  sheet.atLeast("blocks pinned by a cache_control mark", await pinned(), 10);
}
