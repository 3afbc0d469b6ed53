import { isWorkerId, type Json, parseJson, stringifyJson } from "../../core/index.ts";
import type { LoadNews, OutputNews, SharedRequest } from "./load-news.ts";
import { isRouterId, type RouterId } from "./router-id.ts";

const BYTES_MAX = 2 ** 20;
const DEPTH_MAX = 8;

export function encodeOutput(router: RouterId, news: OutputNews): Uint8Array {
  return Buffer.from(stringifyJson({ router, output: news }));
}

export function readOutput(data: Uint8Array): { router: RouterId; news: OutputNews } | null {
  const fields = objectIn(data);
  if (fields === null || !isRouterId(fields.router) || !Array.isArray(fields.output)) return null;
  const news: [string, number][] = [];
  for (const entry of fields.output) {
    const [id, tokens] = Array.isArray(entry) ? entry : [];
    if (typeof id !== "string" || !Number.isSafeInteger(tokens) || Number(tokens) < 0) return null;
    news.push([id, Number(tokens)]);
  }
  return { router: fields.router, news };
}

export function encodeNews(router: RouterId, news: readonly LoadNews[]): Uint8Array {
  const events = news.map((one) => {
    if (one.kind !== "add") return one;
    const { hashes, ...request } = one.request;
    return { kind: one.kind, ...request, hashes: hexOf(hashes) };
  });
  return Buffer.from(stringifyJson({ router, events }));
}

export function readNews(data: Uint8Array): { router: RouterId; news: LoadNews[] } | null {
  const fields = objectIn(data);
  if (fields === null || !isRouterId(fields.router) || !Array.isArray(fields.events)) return null;
  const news: LoadNews[] = [];
  for (const entry of fields.events) {
    const one = newsIn(entry as { readonly [name: string]: Json | undefined });
    if (one === null) return null;
    news.push(one);
  }
  return { router: fields.router, news };
}

function newsIn(fields: { readonly [name: string]: Json | undefined }): LoadNews | null {
  const { kind, id } = fields;
  if (typeof id !== "string") return null;
  if (kind === "free" || kind === "prefill_complete") return { kind, id };
  const { worker, rank, hashes, promptTokens, prefillTokens, expectedOutputTokens } = fields;
  const { isPrefilling, outputTokens } = fields;
  if (typeof worker !== "string" || !isWorkerId(worker) || typeof hashes !== "string") return null;
  const request: SharedRequest = {
    ...{ id, worker, rank: Number(rank) },
    hashes: new BigUint64Array(Uint8Array.fromHex(hashes).buffer),
    promptTokens: Number(promptTokens),
    prefillTokens: Number(prefillTokens),
    expectedOutputTokens: expectedOutputTokens === null ? null : Number(expectedOutputTokens),
    isPrefilling: isPrefilling === true,
    outputTokens: Number(outputTokens),
  };
  return { kind: "add", request };
}

function hexOf(hashes: BigUint64Array): string {
  return new Uint8Array(hashes.buffer, hashes.byteOffset, hashes.byteLength).toHex();
}

function objectIn(data: Uint8Array): { readonly [name: string]: Json | undefined } | null {
  if (data.length > BYTES_MAX) return null;
  try {
    const json = parseJson(new TextDecoder("utf-8", { fatal: true }).decode(data), DEPTH_MAX);
    return typeof json === "object" && json !== null && !Array.isArray(json) ? json : null;
  } catch {
    return null;
  }
}
