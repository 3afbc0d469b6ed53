import { parseJson, type WorkerId } from "../../core/index.ts";
import type { RouteDecision, Target } from "../index.ts";
import { type ProxyParts, type ProxyRequest, wantsUsage } from "./exchange.ts";
import { towardsWorker } from "./headers.ts";
import { kvHintFields, type ServedPart } from "./kv-hints.ts";
import { isEventStream } from "./relay.ts";
import { type BodyChanges, changeBody, type Fields, fieldsIn, isFields } from "./request-body.ts";
import {
  addressAt,
  type FailureStage,
  type HeldAnswer,
  holdAnswer,
  readAll,
  type UpstreamAnswer,
  type UpstreamPiece,
} from "./upstream.ts";
import { usageMember } from "./worker-output.ts";

/** Result of sending a request to a worker. */
export type Attempted =
  | ({ readonly kind: "answer" } & WorkerAnswer)
  | {
      readonly kind: "failed";
      readonly failure: AttemptFailure;
      /** Worker that failed: the prefill worker, or the worker chosen to answer. */
      readonly worker: WorkerId;
    };

/** A worker's answer. It is read up to its first piece, or held back completely. */
export interface WorkerAnswer {
  readonly answer: UpstreamAnswer;
  readonly first: UpstreamPiece;
  /** The held answer. Null: the answer is an event stream, of which only `first` was read. */
  readonly held: HeldAnswer | null;
}

export interface AttemptFailure {
  /** `silent`: the worker stopped answering health checks after it had received the request. */
  readonly stage: FailureStage | "silent";
  readonly why: string;
}

/**
 * Parameters that make a vLLM prefill worker compute the prompt's KV and keep it for the decode
 * worker.
 */
const VLLM_ASK: Fields = {
  do_remote_decode: true,
  do_remote_prefill: false,
  remote_engine_id: null,
  remote_block_ids: null,
  remote_host: null,
  remote_port: null,
};
/**
 * Maximum bytes of a prefill worker's answer. It lists block names, of which long prompts have
 * many.
 */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;

/**
 * Sends a request to the chosen worker. With a separate prefill worker, runs the prefill there
 * before or at the same time.
 */
export class Attempt {
  readonly #parts: ProxyParts;
  readonly #incoming: ProxyRequest;

  constructor(parts: ProxyParts, incoming: ProxyRequest) {
    [this.#parts, this.#incoming] = [parts, incoming];
  }

  async run(decision: RouteDecision): Promise<Attempted> {
    const { spec, named, signal, tracker } = this.#incoming;
    const { prefill, target } = decision;
    const { outputLimit, prompt } = spec;
    if (outputLimit === null || this.#hasOwnTransfer) return this.#send(target, {}, signal);
    const hints = (part: ServedPart, isSourceKnown = false) =>
      kvHintFields(this.#parts, this.#incoming, { decision, part, isSourceKnown });
    const isSglang = named.model.engine === "sglang";
    // SGLang accepts a bootstrap room only in its chat and completion APIs.
    const isApart = !isSglang || prompt === "chat" || prompt === "completions";
    if (prefill === null || prefill.url === null || !isApart) {
      return this.#send(target, hints("whole"), signal);
    }
    // SGLang's workers transfer the blocks between each other.
    if (isSglang) return this.#meet(target, prefill, hints("prefill"), hints("decode", true));
    const fields = await this.#prefillVllm(prefill, outputLimit, hints("prefill"));
    this.#count(fields !== null);
    if (fields === null) return this.#send(target, hints("whole"), signal);
    tracker.prefilled();
    return this.#send(target, mergeTransfer(fields, hints("decode", namesSource(fields))), signal);
  }

  /** True if the client itself arranges the KV transfer. */
  get #hasOwnTransfer(): boolean {
    const { fields } = this.#incoming.body;
    return fields.kv_transfer_params != null || fields.bootstrap_room != null;
  }

  /**
   * Sends the request to the prefill and the decode worker at the same time. If the prefill fails,
   * cancels the decode request, which would otherwise wait for the blocks for ever.
   */
  async #meet(
    target: Target,
    prefill: Target,
    prefillHints: Fields,
    decodeHints: Fields,
  ): Promise<Attempted> {
    const meeting = this.#meetingOf(prefill);
    const alone = new AbortController();
    const signal = AbortSignal.any([this.#incoming.signal, alone.signal]);
    const prefilled = this.#prefillSglang(prefill, { ...meeting, ...prefillHints }, signal);
    const answered = this.#send(target, { ...meeting, ...decodeHints }, signal);
    const isPrefilled = await Promise.race([prefilled, answered.then(() => true)]);
    if (!isPrefilled) {
      this.#count(false);
      alone.abort();
      await answered;
      const failure = { kind: "failed", stage: "sent", why: "the prefill failed" } as const;
      return { kind: "failed", failure, worker: prefill.worker };
    }
    void prefilled.then((isDone) => this.#count(isDone));
    return answered;
  }

  #count(isDone: boolean): void {
    if (isDone) this.#parts.counts.prefills++;
    else this.#parts.counts.prefillsFailed++;
  }

  async #send(target: Target, fields: Fields, signal: AbortSignal): Promise<Attempted> {
    const { worker } = target;
    const { body, tracker } = this.#incoming;
    const usage = wantsUsage(this.#incoming) ? usageMember(body.fields.stream_options) : {};
    const answer = await this.#open(target, { set: { ...usage, ...fields } }, signal);
    if (answer.kind === "failed") return { kind: "failed", failure: answer, worker };
    // Engines send the head of a stream at once, so only the first byte of the body proves
    // progress.
    const first = await answer.read();
    if (isEventStream(answer.headers)) return { kind: "answer", answer, first, held: null };
    if (first.kind !== "failed") tracker.prefilled();
    const held = await holdAnswer(answer, first, this.#parts.settings.heldBytesMax);
    if ("kind" in held) return { kind: "failed", failure: held, worker };
    return { kind: "answer", answer, first, held };
  }

  /** Sends the client's request to a worker, with changes to its body. */
  #open(target: Target, { set, remove = [] }: BodyChanges, signal: AbortSignal) {
    const { settings, table, upstream } = this.#parts;
    const { path, headers, tracker, named, body: given, hints, spec } = this.#incoming;
    const sent = towardsWorker(headers, settings.authorization);
    if (!sent.has("x-request-id")) sent.set("x-request-id", tracker.id);
    // One server may serve several ranks. vLLM and SGLang read the rank from this header.
    const isOneOfMany = table.targets.filter(({ worker }) => worker === target.worker).length > 1;
    if (isOneOfMany) sent.set("x-data-parallel-rank", String(target.rank));
    const hasSalt = spec.takesSalt && hints.isSaltFromHeader && hints.cacheSalt !== null;
    const salt = hasSalt ? { cache_salt: hints.cacheSalt } : {};
    const strip = named.model.stripFields;
    const body = changeBody(given, { set: { ...salt, ...set }, remove, strip });
    const url = addressAt(target.url!, path);
    return upstream.open({ method: "POST", url, headers: sent, body, waits: settings }, signal);
  }

  /**
   * Runs the prefill on vLLM: sends the prompt to the prefill worker with a limit of one output
   * token, and returns the KV parameters of its answer for the decode worker. A prefill worker that
   * accepts hints stores its blocks in Hearth and may return no parameters. Returns null if the
   * prefill failed; the decode worker then computes the prompt. `outputLimit`: request field that
   * limits output.
   */
  async #prefillVllm(
    prefill: Target,
    outputLimit: "max_tokens" | "max_output_tokens",
    hints: Fields,
  ): Promise<Fields | null> {
    const { body, signal } = this.#incoming;
    const { kv_transfer_params: hinted = null } = hints;
    const set = {
      ...hints,
      [outputLimit]: 1,
      ...("max_completion_tokens" in body.fields ? { max_completion_tokens: 1 } : {}),
      // The one-token response must not be stored or run in the background.
      ...(outputLimit === "max_output_tokens" ? { store: false, background: false } : {}),
      stream: false,
      kv_transfer_params: { ...VLLM_ASK, ...(isFields(hinted) ? hinted : {}) },
    };
    const remove = ["stream_options", "min_tokens"];
    const answer = await this.#open(prefill, { set, remove }, signal);
    if (answer.kind === "failed") return null;
    const text = answer.status === 200 ? await readAll(answer, ANSWER_BYTES_MAX) : null;
    if (text === null) answer.close();
    const said = text === null ? null : fieldsIn(text, parseJson);
    if (said === null) return null;
    const { kv_transfer_params: params = null } = said;
    if (isFields(params)) return { kv_transfer_params: params };
    return hinted === null ? null : {};
  }

  /**
   * Runs the prefill on SGLang. Both workers receive the request at the same time, with a bootstrap
   * room for the transfer. Resolves when the prefill worker has answered; true if the prefill
   * succeeded.
   */
  async #prefillSglang(prefill: Target, set: Fields, signal: AbortSignal): Promise<boolean> {
    const answer = await this.#open(prefill, { set }, signal);
    if (answer.kind === "failed") return false;
    for (;;) {
      const piece = await answer.read();
      if (piece.kind === "failed") return false;
      if (piece.kind === "end") return answer.status === 200;
    }
  }

  /** Returns the fields with bootstrap address and room, which both requests must contain. */
  #meetingOf(prefill: Target): Fields {
    const { random } = this.#parts;
    const host = URL.parse(prefill.url!)?.hostname ?? "";
    const port = this.#incoming.named.model.bootstrapPort;
    const room = () => (BigInt(random.u32() >>> 1) << 32n) | BigInt(random.u32());
    const { prompt } = this.#incoming.body.fields;
    const isBatch = Array.isArray(prompt) && prompt.some((one) => typeof one !== "number");
    if (!isBatch) return { bootstrap_host: host, bootstrap_port: port, bootstrap_room: room() };
    return {
      bootstrap_host: prompt.map(() => host),
      bootstrap_port: prompt.map(() => port),
      bootstrap_room: prompt.map(() => room()),
    };
  }
}

/** Returns true if the prefill worker's connector named the agent that has the prompt's blocks. */
function namesSource({ kv_transfer_params: said }: Fields): boolean {
  const { hearth } = (said ?? {}) as Fields;
  const { source } = (hearth ?? {}) as Fields;
  return typeof source === "string" && source !== "";
}

/**
 * Merges KV transfer parameters of the prefill worker with the proxy's hints, which take
 * precedence.
 */
function mergeTransfer(fields: Fields, hints: Fields): Fields {
  const [said, hinted] = [fields.kv_transfer_params, hints.kv_transfer_params];
  if (said === undefined || hinted === undefined) return { ...fields, ...hints };
  return { ...hints, kv_transfer_params: { ...(said as Fields), ...(hinted as Fields) } };
}
