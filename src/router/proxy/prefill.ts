import { type Json, parseJson, type Random } from "../../core/index.ts";
import type { Target } from "../index.ts";
import { changeBody, type RequestBody } from "./request-body.ts";
import type { ProxyModel } from "./settings.ts";
import { readAll, type Upstream, type UpstreamOrder } from "./upstream/index.ts";

type Members = Readonly<Record<string, Json>>;

/** What a prefill worker is asked for first: the KV of the prompt, kept for whoever decodes. */
const VLLM_ASK: Members = {
  do_remote_decode: true,
  do_remote_prefill: false,
  remote_engine_id: null,
  remote_block_ids: null,
  remote_host: null,
  remote_port: null,
};
/** Names of blocks, for the longest prompts there are. */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;

export interface PrefillSetting {
  readonly upstream: Upstream;
  readonly body: RequestBody;
  readonly strip: readonly string[];
  /** The request without its body, to the prefill worker. */
  readonly order: Omit<UpstreamOrder, "body">;
  readonly signal: AbortSignal;
}

/**
 * vLLM: the prompt goes to the prefill worker for one token, and what it says of its KV goes to the
 * decode worker. A prefill worker that takes hints stores its blocks in Hearth and need not say
 * anything. Null if it failed: then the decode worker computes the prompt itself.
 */
export async function prefillVllm(
  setting: PrefillSetting & {
    /** The member that limits output. */
    readonly outputLimit: "max_tokens" | "max_output_tokens";
  },
  set: Members,
): Promise<Members | null> {
  const { upstream, body, strip, outputLimit, order, signal } = setting;
  const { kv_transfer_params: hinted = null } = set;
  const one = {
    ...set,
    [outputLimit]: 1,
    ...("max_completion_tokens" in body.fields ? { max_completion_tokens: 1 } : {}),
    // A response of one token is not to be kept, nor computed behind an answer.
    ...(outputLimit === "max_output_tokens" ? { store: false, background: false } : {}),
    stream: false,
    kv_transfer_params: { ...VLLM_ASK, ...(isMembers(hinted) ? hinted : {}) },
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
    const params = (isMembers(value) ? value.kv_transfer_params : null) ?? null;
    if (isMembers(params)) return { kv_transfer_params: params };
    return hinted === null ? null : {};
  } catch {
    return null;
  }
}

/**
 * SGLang: both workers get the request at once, and a room in which they meet. Resolves when the
 * prefill worker has answered: whether it did its part.
 */
export async function prefillSglang(setting: PrefillSetting, set: Members): Promise<boolean> {
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

/** Where the two meet: members for both requests. */
export function meetingOf(
  prefill: Target,
  body: RequestBody,
  model: ProxyModel,
  random: Random,
): Members {
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

function isMembers(value: Json): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
