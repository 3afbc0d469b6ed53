import OpenAI from "openai";
import type { Row } from "./client-rows.ts";

export interface StopOptions {
  readonly url: string;
  readonly model: string;
  /** Process that is stopped: the server with its engine, or only the engine. */
  readonly what: string;
  /** Stops one of two engines. */
  stop(): void;
  go(): void;
}

const REQUESTS = 12;
const TOKENS = 16;
/** Maximum time from the stop to the end of a request, in addition to its usual duration. */
const MOVED_MAX_MS = 6_000;
const BACK_MAX_MS = 15_000;
const TIMEOUT_MS = 120_000;

/** Duration of one request in milliseconds. Every second request is a stream. */
async function ask(client: OpenAI, model: string, number: number): Promise<number> {
  const began = performance.now();
  const content = `Request ${number} of ${began}: tell a story.`;
  const body = { model, messages: [{ role: "user" as const, content }], max_tokens: TOKENS };
  if (number % 2 === 0) {
    const stream = await client.chat.completions.create({ ...body, stream: true });
    for await (const _chunk of stream);
  } else await client.chat.completions.create(body);
  return performance.now() - began;
}

/** Checks that requests to a stopped engine are finished by the other one in time. */
export async function stopRow({ url, model, what, stop, go }: StopOptions): Promise<Row> {
  const options = { baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: TIMEOUT_MS };
  const client = new OpenAI(options);
  const row = `SIGSTOP of ${what}`;
  const all = (from: number) =>
    Promise.all(Array.from({ length: REQUESTS }, (_, i) => ask(client, model, from + i)));
  // The same concurrency as later, so that the usual duration is measured under equal load.
  const calm = Math.max(...(await all(0)));
  stop();
  try {
    const moved = Math.max(...(await all(1_000)));
    const later = Math.max(...(await all(2_000)));
    const found =
      `slowest ${Math.round(moved)} ms after the stop, ${Math.round(later)} ms for later ones, ` +
      `${Math.round(calm)} ms alone`;
    // One engine does the work of two.
    return { row, ok: moved <= MOVED_MAX_MS + 2 * calm, found };
  } catch (thrown) {
    return { row, ok: false, found: String(thrown) };
  } finally {
    go();
  }
}

/** Checks that both engines answer again. */
export async function backRow(url: string, workers: number): Promise<Row> {
  const began = performance.now();
  const seen = new Set<string>();
  while (performance.now() - began < BACK_MAX_MS) {
    const body = JSON.stringify({ prompt: `${performance.now()}`, max_tokens: 1 });
    const headers = { "content-type": "application/json" };
    const answer = await fetch(`${url}/v1/completions`, { method: "POST", headers, body });
    await answer.text();
    seen.add(answer.headers.get("x-hearth-worker") ?? "");
    if (seen.size === workers) break;
    await Bun.sleep(50);
  }
  const found = `${[...seen].join(", ")} after ${Math.round(performance.now() - began)} ms`;
  return { row: "the stopped engine is used again", ok: seen.size === workers, found };
}
