import { type Json, stringifyJson } from "../../core/index.ts";
import type { RouteDecision, Target } from "../index.ts";
import { type ProxyParts, type ProxyRequest, routeRequestOf } from "./exchange.ts";
import type { PromptMark } from "./observer.ts";
import { type Fields, isFields } from "./request-body.ts";
import type { KvHintAction, KvHintsCarrier } from "./settings.ts";

/** The part of a request that a worker serves. */
export type ServedPart = "whole" | "prefill" | "decode";

interface Action {
  readonly type: KvHintAction;
  readonly payload: Fields;
}

/** docs/reference/kv-hints.md defines envelope, actions and payloads. */
const VERSION = "1";
const ID_CHARACTERS_MAX = 128;
/** Marks used per request. As in Anthropic's API, the last ones count. */
const MARKS_MAX = 4;
/** Default and maximum lifetime of a mark, Anthropic's values. */
const PIN_TTL_SECONDS = 300;
const PIN_TTL_SECONDS_MAX = 3_600;
const RETAIN_PRIORITY_MAX = 99;
const RETAIN_TTL_SECONDS = 600;
const DEMOTE_TTL_SECONDS = 3_600;
/** A worker is a source if it holds at least this many more tokens than the chosen worker. */
const SOURCE_TOKENS_MIN = 512;
const SOURCES_MAX = 4;
/** Owner of pins if a request names no tenant. The policy `cache_control` uses the same. */
const NO_TENANT = "api";

/** The worker to hint, and its part of the request. */
interface Task {
  readonly decision: RouteDecision;
  readonly part: ServedPart;
  /** For `decode`: the prefill worker named the agent that has its blocks. */
  readonly isSourceKnown?: boolean;
}

/**
 * Request fields that carry KV hints to a worker. Empty if the worker accepts none or there are
 * none.
 */
export function kvHintFields(parts: ProxyParts, incoming: ProxyRequest, task: Task): Fields {
  const carrier = carrierOf(incoming, workerOf(task));
  if (carrier === "off" || isBatch(incoming.body.fields.prompt ?? null)) return {};
  const own = incoming.body.fields.kv_hints ?? null;
  const envelope = isFields(own) ? own : envelopeOf(parts, incoming, task);
  if (carrier === "kv_hints") return envelope === null ? {} : { kv_hints: envelope };
  if (carrier === "custom_params") return envelope === null ? {} : customParams(incoming, envelope);
  const { sessionId, priority } = incoming.hints;
  const fields = {
    ...(sessionId === null ? {} : { session_id: sessionId }),
    ...(priority === null ? {} : { priority }),
    ...(envelope === null ? {} : { kv_hints: envelope }),
  };
  return Object.keys(fields).length === 0 ? {} : { kv_transfer_params: fields };
}

function workerOf({ decision, part }: Task): Target {
  return part === "prefill" && decision.prefill !== null ? decision.prefill : decision.target;
}

/** SGLang passes `custom_params` to its scheduler; values must be texts or numbers. */
function customParams({ body }: ProxyRequest, envelope: Fields): Fields {
  const own = body.fields.custom_params ?? {};
  return isFields(own) ? { custom_params: { ...own, kv_hints: stringifyJson(envelope) } } : {};
}

/**
 * Resolves `auto`. A worker whose agent publishes block names has a Hearth connector. vLLM's OpenAI
 * server passes `kv_transfer_params` to it, SGLang's passes `custom_params`.
 */
function carrierOf({ named }: ProxyRequest, target: Target): Exclude<KvHintsCarrier, "auto"> {
  const { kvHints, engine } = named.model;
  if (kvHints !== "auto") return kvHints;
  if (!hasHearth(target)) return "off";
  return engine === "vllm" ? "kv_transfer_params" : "custom_params";
}

function hasHearth({ spaces }: Target): boolean {
  return spaces.some(({ kind }) => kind === "blocks");
}

function envelopeOf(parts: ProxyParts, incoming: ProxyRequest, task: Task): Fields | null {
  const { kvHintActions } = incoming.named.model;
  const allowed = actionsOf(parts, incoming, task).filter(({ type }) =>
    kvHintActions.includes(type),
  );
  if (allowed.length === 0) return null;
  return {
    protocol_version: VERSION,
    message_id: `${incoming.tracker.id}.${workerOf(task).worker}`.slice(0, ID_CHARACTERS_MAX),
    actions: allowed.map(({ type, payload }, index) => ({
      action_id: String(index + 1),
      action_type: type,
      action_version: VERSION,
      payload,
    })),
  };
}

/** The prefill worker stores the prompt; the decode worker stores the answer. */
function actionsOf(
  parts: ProxyParts,
  incoming: ProxyRequest,
  { decision, part, ...task }: Task,
): Action[] {
  const actions: Action[] = [];
  if (part === "prefill") actions.push({ type: "share", payload: {} });
  if (part === "whole") actions.push(...sourcesOf(parts, incoming, decision));
  if (part === "decode" && decision.prefill !== null && task.isSourceKnown !== true) {
    const sources = [decision.prefill.worker];
    actions.push({ type: "prefetch", payload: { sources, wait: true } });
  }
  if (part !== "decode") actions.push(...promptActions(incoming));
  if (part !== "prefill") actions.push(...answerActions(incoming));
  return actions;
}

function promptActions({ hints, prompt }: ProxyRequest): Action[] {
  const owner = (hints.cacheSalt ?? NO_TENANT).slice(0, ID_CHARACTERS_MAX);
  const marks = prompt.marks.slice(-MARKS_MAX);
  const actions: Action[] = marks.map((mark) => ({ type: "pin", payload: pinOf(mark, owner) }));
  if (hints.priority !== null && hints.priority > 0) {
    const priority = Math.min(hints.priority, RETAIN_PRIORITY_MAX);
    const payload = { priority, ttl_seconds: RETAIN_TTL_SECONDS, owner };
    actions.push({ type: "retain", payload });
  }
  return actions;
}

function answerActions({ hints, prompt: { reasoning, marks } }: ProxyRequest): Action[] {
  const actions: Action[] = [];
  if (reasoning !== null) {
    const payload = { open_token: reasoning.start, close_token: reasoning.end };
    actions.push({ type: "transient", payload });
  }
  // The first mark ends the prefix that sessions share: system prompt and tools. That prefix stays
  // in RAM.
  const shared = marks[0];
  if (hints.isSessionEnd && hints.sessionId !== null && shared !== undefined) {
    const session_id = hints.sessionId;
    const payload = { from_token: shared.tokens, ttl_seconds: DEMOTE_TTL_SECONDS, session_id };
    actions.push({ type: "demote", payload });
  }
  return actions;
}

function pinOf({ tokens, ttlSeconds }: PromptMark, owner: string): Fields {
  const ttl_seconds = Math.min(ttlSeconds ?? PIN_TTL_SECONDS, PIN_TTL_SECONDS_MAX);
  return { prefix_tokens: tokens, ttl_seconds, owner };
}

/** Workers that hold more of the prompt than the chosen one, largest first. */
function sourcesOf(
  { router, table }: ProxyParts,
  incoming: ProxyRequest,
  { target, terms }: RouteDecision,
): Action[] {
  if (!incoming.named.model.kvHintActions.includes("prefetch")) return [];
  const isOther = (one: Target) => one.worker !== target.worker && one.model === target.model;
  if (!table.targets.some((one) => isOther(one) && hasHearth(one))) return [];
  const { requestId: _, ...request } = routeRequestOf(incoming, []);
  // The router already counts this request as held by the chosen worker, hence `terms`.
  const least = terms.cachedTokens + SOURCE_TOKENS_MIN;
  const others = router
    .getPotentialLoads(request)
    .map(({ worker, rank, heldTokens }) => {
      const tokens = heldTokens.device + heldTokens.host + heldTokens.disk;
      return { worker, rank, tokens };
    })
    .filter(({ worker, rank, tokens }) => {
      if (worker === target.worker || tokens < least) return false;
      const other = table.find(worker, rank);
      return other !== null && hasHearth(other);
    })
    .sort((a, b) => b.tokens - a.tokens);
  if (others.length === 0) return [];
  const sources = [...new Set(others.map(({ worker }) => worker))].slice(0, SOURCES_MAX);
  return [{ type: "prefetch", payload: { prefix_tokens: others[0]!.tokens, sources } }];
}

/** Whether a request has several prompts. Hints describe one prompt. */
function isBatch(prompt: Json): boolean {
  return Array.isArray(prompt) && prompt.length > 1 && typeof prompt[0] !== "number";
}
