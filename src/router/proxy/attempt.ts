import { type Json, parseJson, type Random } from "../../core/index.ts";
import type { RouteDecision, Router, Target, WorkerTable } from "../index.ts";
import type { ProxyCounts } from "./counts.ts";
import type { Attempted } from "./dispatch.ts";
import { type ProxyRequest, wantsUsage } from "./exchange.ts";
import { towardsWorker } from "./headers.ts";
import { kvHintFields, type ServedPart } from "./kv-hints.ts";
import { isEventStream } from "./relay.ts";
import { changeBody, type RequestBody } from "./request-body.ts";
import type { ProxyModel, ProxySettings } from "./settings.ts";
import { addressAt, bufferAnswer, readAll, type Upstream, type UpstreamOrder } from "./upstream.ts";
import { usageMember } from "./worker-output.ts";

export interface AttemptParts {
  readonly settings: ProxySettings;
  readonly table: WorkerTable;
  readonly upstream: Upstream;
  readonly random: Random;
  readonly counts: ProxyCounts;
  readonly router: Pick<Router, "getPotentialLoads">;
}

type JsonObject = Readonly<Record<string, Json>>;

/** Sends a request to the chosen worker, and to its prefill worker before or at the same time. */
export async function attempt(
  parts: AttemptParts,
  incoming: ProxyRequest,
  decision: RouteDecision,
): Promise<Attempted> {
  const { prefill, target } = decision;
  const { outputLimit, prompt } = incoming.spec;
  if (outputLimit === null || hasOwnTransfer(incoming))
    return send(parts, incoming, target, {}, incoming.signal);
  const hints = (part: ServedPart, isSourceKnown = false) =>
    kvHintFields(parts, incoming, { decision, part, isSourceKnown });
  const isSglang = incoming.named.model.engine === "sglang";
  // SGLang accepts a bootstrap room only on its two own APIs.
  const isApart = !isSglang || prompt === "chat" || prompt === "completions";
  if (prefill === null || prefill.url === null || !isApart) {
    return send(parts, incoming, target, hints("whole"), incoming.signal);
  }
  if (isSglang) {
    // SGLang transfers the blocks itself.
    const each = { prefill: hints("prefill"), decode: hints("decode", true) };
    return meet(parts, incoming, target, prefill, each);
  }
  const first = { ...added(incoming), ...hints("prefill") };
  const setting = { ...settingOf(parts, incoming, prefill, incoming.signal), outputLimit };
  const fields = await prefillVllm(setting, first);
  count(parts, fields !== null);
  if (fields === null) return send(parts, incoming, target, hints("whole"), incoming.signal);
  incoming.tracker.prefilled();
  const second = hints("decode", namesSource(fields));
  return send(parts, incoming, target, mergeTransfer(fields, second), incoming.signal);
}

/** Whether the prefill worker's connector named the agent that has the blocks. */
function namesSource({ kv_transfer_params: said }: JsonObject): boolean {
  const { hearth } = (said ?? {}) as JsonObject;
  const { source } = (hearth ?? {}) as JsonObject;
  return typeof source === "string" && source !== "";
}

/** Merges two sets of KV transfer parameters. The proxy's hints take precedence. */
function mergeTransfer(fields: JsonObject, hints: JsonObject): JsonObject {
  const [said, hinted] = [fields.kv_transfer_params, hints.kv_transfer_params];
  if (said === undefined || hinted === undefined) return { ...fields, ...hints };
  return { ...hints, kv_transfer_params: { ...(said as JsonObject), ...(hinted as JsonObject) } };
}

/** Whether the client arranges the KV transfer itself. */
function hasOwnTransfer({ body }: ProxyRequest): boolean {
  return body.fields.kv_transfer_params != null || body.fields.bootstrap_room != null;
}

/**
 * Sends the request to both workers at once. The decode worker would wait for ever if the prefill
 * failed, so a failed prefill ends the decode request too.
 */
async function meet(
  parts: AttemptParts,
  incoming: ProxyRequest,
  target: Target,
  prefill: Target,
  hints: { readonly prefill: JsonObject; readonly decode: JsonObject },
): Promise<Attempted> {
  const meeting = meetingOf(prefill, incoming.body, incoming.named.model, parts.random);
  const alone = new AbortController();
  const signal = AbortSignal.any([incoming.signal, alone.signal]);
  const setting = settingOf(parts, incoming, prefill, signal);
  const prefilled = prefillSglang(setting, { ...added(incoming), ...meeting, ...hints.prefill });
  const answered = send(parts, incoming, target, { ...meeting, ...hints.decode }, signal);
  const isPrefilled = await Promise.race([prefilled, answered.then(() => true)]);
  if (!isPrefilled) {
    count(parts, false);
    alone.abort();
    await answered;
    const failure = { kind: "failed", stage: "sent", why: "the prefill failed" } as const;
    return { kind: "failed", failure, worker: prefill.worker };
  }
  void prefilled.then((isDone) => count(parts, isDone));
  return answered;
}

function count({ counts }: AttemptParts, isDone: boolean): void {
  if (isDone) counts.prefills++;
  else counts.prefillsFailed++;
}

/** Fields that the proxy adds to the client's request for every worker. */
function added({ hints, spec }: ProxyRequest): JsonObject {
  if (!spec.takesSalt) return {};
  return hints.isSaltFromHeader && hints.cacheSalt !== null ? { cache_salt: hints.cacheSalt } : {};
}

async function send(
  parts: AttemptParts,
  incoming: ProxyRequest,
  target: Target,
  fields: JsonObject,
  signal: AbortSignal,
): Promise<Attempted> {
  const { worker } = target;
  const strip = incoming.named.model.stripFields;
  const usage = wantsUsage(incoming) ? usageMember(incoming.body.fields.stream_options) : {};
  const body = changeBody(incoming.body, {
    set: { ...added(incoming), ...usage, ...fields },
    strip,
  });
  const answer = await parts.upstream.open({ ...orderTo(parts, incoming, target), body }, signal);
  if (answer.kind === "failed") return { kind: "failed", failure: answer, worker };
  // Engines send the head of a stream at once, so only the first byte of the body shows progress.
  const first = await answer.read();
  if (isEventStream(answer.headers)) return { kind: "answer", answer, first };
  if (first.kind !== "failed") incoming.tracker.prefilled();
  const held = await bufferAnswer(answer, first, parts.settings.heldBytesMax);
  if ("kind" in held) return { kind: "failed", failure: held, worker };
  return { kind: "answer", ...held };
}

function settingOf(
  parts: AttemptParts,
  incoming: ProxyRequest,
  prefill: Target,
  signal: AbortSignal,
): PrefillSetting {
  const { upstream } = parts;
  const strip = incoming.named.model.stripFields;
  const order = orderTo(parts, incoming, prefill);
  return { upstream, body: incoming.body, strip, order, signal };
}

function orderTo(
  { settings, table }: AttemptParts,
  { path, headers, tracker }: ProxyRequest,
  target: Target,
): Omit<UpstreamOrder, "body"> {
  const { connectMs, firstByteMs, idleMs } = settings;
  const sent = towardsWorker(headers, settings.authorization);
  if (!sent.has("x-request-id")) sent.set("x-request-id", tracker.id);
  // One server may serve several ranks. vLLM and SGLang both read the rank from this header.
  const isOneOfMany = table.targets.filter(({ worker }) => worker === target.worker).length > 1;
  if (isOneOfMany) sent.set("x-data-parallel-rank", String(target.rank));
  const url = addressAt(target.url!, path);
  const waits = { connectMs, firstByteMs, idleMs };
  return { method: "POST", url, headers: sent, ...waits };
}

/**
 * Parameters that make a vLLM prefill worker compute the prompt's KV and keep it for the decode
 * worker.
 */
const VLLM_ASK: JsonObject = {
  do_remote_decode: true,
  do_remote_prefill: false,
  remote_engine_id: null,
  remote_block_ids: null,
  remote_host: null,
  remote_port: null,
};
/**
 * Limits the answer of a prefill worker: it lists block names, which the longest prompts have many
 * of.
 */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;

interface PrefillSetting {
  readonly upstream: Upstream;
  readonly body: RequestBody;
  readonly strip: readonly string[];
  /** The request to the prefill worker, without its body. */
  readonly order: Omit<UpstreamOrder, "body">;
  readonly signal: AbortSignal;
}

/**
 * Runs the prefill on vLLM: sends the prompt to the prefill worker for one token, and returns the
 * KV parameters of its answer for the decode worker. A prefill worker that accepts hints stores its
 * blocks in Hearth and may return no parameters. Null: the prefill failed, and the decode worker
 * computes the prompt itself.
 */
async function prefillVllm(
  setting: PrefillSetting & {
    /** The request field that limits output. */
    readonly outputLimit: "max_tokens" | "max_output_tokens";
  },
  set: JsonObject,
): Promise<JsonObject | null> {
  const { upstream, body, strip, outputLimit, order, signal } = setting;
  const { kv_transfer_params: hinted = null } = set;
  const one = {
    ...set,
    [outputLimit]: 1,
    ...("max_completion_tokens" in body.fields ? { max_completion_tokens: 1 } : {}),
    // Do not store a one-token response, and do not compute it in the background.
    ...(outputLimit === "max_output_tokens" ? { store: false, background: false } : {}),
    stream: false,
    kv_transfer_params: { ...VLLM_ASK, ...(isObject(hinted) ? hinted : {}) },
  };
  const remove = ["stream_options", "min_tokens"];
  const bytes = changeBody(body, { set: one, remove, strip });
  const answer = await upstream.open({ ...order, body: bytes }, signal);
  if (answer.kind === "failed") return null;
  const text = answer.status === 200 ? await readAll(answer, ANSWER_BYTES_MAX) : null;
  if (text === null) {
    answer.close();
    return null;
  }
  try {
    const value = parseJson(text);
    const params = (isObject(value) ? value.kv_transfer_params : null) ?? null;
    if (isObject(params)) return { kv_transfer_params: params };
    return hinted === null ? null : {};
  } catch {
    return null;
  }
}

/**
 * Runs the prefill on SGLang: both workers get the request at once, with a bootstrap room for the
 * transfer. Resolves when the prefill worker has answered: true if the prefill succeeded.
 */
async function prefillSglang(setting: PrefillSetting, set: JsonObject): Promise<boolean> {
  const { upstream, body, strip, order, signal } = setting;
  const bytes = changeBody(body, { set, strip });
  const answer = await upstream.open({ ...order, body: bytes }, signal);
  if (answer.kind === "failed") return false;
  for (;;) {
    const piece = await answer.read();
    if (piece.kind === "failed") return false;
    if (piece.kind === "end") return answer.status === 200;
  }
}

/** Fields with the bootstrap address and room, for both requests. */
function meetingOf(
  prefill: Target,
  body: RequestBody,
  model: ProxyModel,
  random: Random,
): JsonObject {
  const host = URL.parse(prefill.url!)?.hostname ?? "";
  const port = model.bootstrapPort;
  const room = () => (BigInt(random.u32() >>> 1) << 32n) | BigInt(random.u32());
  const { prompt } = body.fields;
  const isBatch = Array.isArray(prompt) && prompt.some((one) => typeof one !== "number");
  if (!isBatch) return { bootstrap_host: host, bootstrap_port: port, bootstrap_room: room() };
  return {
    bootstrap_host: prompt.map(() => host),
    bootstrap_port: prompt.map(() => port),
    bootstrap_room: prompt.map(() => room()),
  };
}

function isObject(value: Json): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
