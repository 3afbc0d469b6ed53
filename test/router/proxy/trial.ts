import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { wordsFor } from "./mock-engine.ts";
import { type Engines, startEngines, startRouter } from "./processes.ts";

const MODEL = "acme/tiny-chat";

export interface TrialOptions {
  readonly streams: number;
  /** Requests used to measure the added latency. */
  readonly samples: number;
  /** Executable to test instead of the sources. */
  readonly binary: string | null;
  readonly onProgress: (text: string) => void;
}

export interface ProxyFigures {
  readonly streams: number;
  readonly wrong_streams: number;
  readonly cancelled: number;
  readonly errors_told: number;
  readonly direct_ttfb_p50_ms: number;
  readonly added_ttfb_p50_ms: number;
  readonly added_ttfb_p99_ms: number;
  /** Measured while all streams run. */
  readonly busy_added_ttfb_p50_ms: number;
}

export interface TrialReport {
  readonly figures: ProxyFigures;
  readonly violations: readonly string[];
}

/** A conversation of about a thousand tokens with a unique end. */
function bodyOf(name: string, tokens = 24) {
  // Two kinds of conversations, so that both engines get some.
  const rules = `Rules ${name.length % 2}. ${"Answer in the tone of the reader. ".repeat(90)}`;
  const messages = [
    { role: "system" as const, content: rules },
    { role: "user" as const, content: `Tell me of ${name}.` },
  ];
  return { model: MODEL, messages, max_tokens: tokens };
}

async function manners(engines: Engines, how: object): Promise<void> {
  await fetch(engines.control, { method: "POST", body: JSON.stringify(how) });
}

async function stateOf(engines: Engines): Promise<{ live: number[]; aborted: number[] }> {
  return (await (await fetch(engines.control)).json()) as { live: number[]; aborted: number[] };
}

async function until(condition: () => Promise<boolean>, what: string): Promise<boolean> {
  const deadline = performance.now() + 10_000;
  while (performance.now() < deadline) {
    if (await condition()) return true;
    await Bun.sleep(5);
  }
  process.stderr.write(`proxy: ${what} did not happen\n`);
  return false;
}

/** Whether the received output equals the engine's output. */
async function isRight(client: OpenAI, name: string, tokens: number): Promise<boolean> {
  const body = bodyOf(name, tokens);
  const stream = await client.chat.completions.create({ ...body, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  return text === wordsFor(body).join("");
}

/** Time to the first byte of a streamed answer, in milliseconds. */
async function firstByteMs(url: string, name: string): Promise<number> {
  const body = JSON.stringify({ ...bodyOf(name, 1), stream: true });
  const startMs = performance.now();
  const headers = { "content-type": "application/json" };
  const init = { method: "POST", headers, body };
  const response = await fetch(`${url}/v1/chat/completions`, init);
  const reader = response.body!.getReader();
  await reader.read();
  const ms = performance.now() - startMs;
  while (!(await reader.read()).done);
  return ms;
}

function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

/** Alternates direct and proxied requests, so that both see the same load. */
async function measure(direct: string, proxied: string, samples: number) {
  const [without, through]: [number[], number[]] = [[], []];
  for (let i = 0; i < samples + 10; i++) {
    const [a, b] = [await firstByteMs(direct, `a${i}`), await firstByteMs(proxied, `b${i}`)];
    if (i < 10) continue;
    without.push(a);
    through.push(b);
  }
  return { without, through };
}

function round(ms: number): number {
  return Math.round(ms * 1_000) / 1_000;
}

/** Runs the clients in this process, the engines and the router in others. */
export async function runTrial(options: TrialOptions): Promise<TrialReport> {
  const folder = mkdtempSync(join(tmpdir(), "hearth-proxy-"));
  try {
    await using engines = await startEngines();
    await using router = await startRouter(folder, engines.urls, options.binary);
    return await trialOf(options, engines, router.url);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function trialOf(
  { streams, samples, onProgress }: TrialOptions,
  engines: Engines,
  url: string,
): Promise<TrialReport> {
  const violations: string[] = [];
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const models = (await client.models.list()).data.map(({ id }) => id);
  if (models.join() !== MODEL) violations.push(`the models are ${models}`);
  onProgress("latency, nothing else under way");
  const calm = await measure(engines.urls[0]!, url, samples);
  onProgress(`${streams} streams at once`);
  await manners(engines, { firstTokenMs: 20, tokenMs: 20 });
  const running = Promise.all(
    Array.from({ length: streams }, (_, i) => {
      return isRight(client, `stream ${i}`, 100).catch(() => false);
    }),
  );
  await until(async () => (await stateOf(engines)).live.some((one) => one > 0), "streams");
  const busy = await measure(engines.urls[0]!, url, Math.min(samples, 20));
  const wrong = (await running).filter((isGood) => !isGood).length;
  if (wrong > 0) violations.push(`${wrong} of ${streams} streams were not what engines wrote`);
  onProgress("cancel");
  const before = (await stateOf(engines)).aborted.reduce((a, b) => a + b);
  const cancels = 20;
  await Promise.all(
    Array.from({ length: cancels }, async (_, i) => {
      const body = bodyOf(`cancel ${i}`, 10_000);
      const stream = await client.chat.completions.create({ ...body, stream: true });
      for await (const _chunk of stream) break;
      stream.controller.abort();
    }),
  );
  const areTold = async () => {
    const { aborted, live } = await stateOf(engines);
    return aborted.reduce((a, b) => a + b) - before === cancels && live.every((one) => one === 0);
  };
  if (!(await until(areTold, "cancel"))) {
    const state = JSON.stringify({ before, ...(await stateOf(engines)) });
    violations.push(`engines did not receive all cancels: ${state}`);
  }
  onProgress("errors");
  const told = await errorsOf(client, engines, violations);
  await manners(engines, {});
  if (!(await isRight(client, "the end", 10))) violations.push("wrong after the errors");
  const added = quantile(calm.through, 0.5) - quantile(calm.without, 0.5);
  return {
    violations,
    figures: {
      streams,
      wrong_streams: wrong,
      cancelled: cancels,
      errors_told: told,
      direct_ttfb_p50_ms: round(quantile(calm.without, 0.5)),
      added_ttfb_p50_ms: round(added),
      added_ttfb_p99_ms: round(quantile(calm.through, 0.99) - quantile(calm.without, 0.99)),
      busy_added_ttfb_p50_ms: round(quantile(busy.through, 0.5) - quantile(busy.without, 0.5)),
    },
  };
}

/** The client's exception for each kind of failure. */
async function errorsOf(client: OpenAI, engines: Engines, violations: string[]): Promise<number> {
  let told = 0;
  const expectError = async (what: string, status: number | undefined, ask: Promise<unknown>) => {
    const thrown = await ask.then(
      () => null,
      (error: unknown) => error,
    );
    if (thrown instanceof OpenAI.APIError && thrown.status === status) told++;
    else violations.push(`${what}: ${String(thrown)}`);
  };
  const body = bodyOf("errors");
  const refuses = { status: 400, body: { error: { message: "no", type: "x", code: 400 } } };
  await manners(engines, { refuses });
  await expectError("a worker's 400", 400, client.chat.completions.create(body));
  await manners(engines, { diesAfter: 3 });
  await expectError("a death in a stream", undefined, isRight(client, "death", 20));
  await expectError("a death otherwise", 502, client.chat.completions.create(body));
  await manners(engines, {});
  const other = { ...body, model: "other" };
  await expectError("an unknown model", 404, client.chat.completions.create(other));
  return told;
}
