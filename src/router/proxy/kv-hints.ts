import { type Json, stringifyJson } from "../../core/index.ts";
import type { RouteDecision, Target } from "../index.ts";
import { type ProxyParts, type ProxyRequest, routeRequestOf } from "./exchange.ts";
import type { PromptMark } from "./observer.ts";
import { type Fields, isFields } from "./request-body.ts";
import type { KvHintAction, KvHintsCarrier } from "./settings.ts";

/** Part of a request that a worker serves. */
export type ServedPart = "whole" | "prefill" | "decode";

interface Action {
  readonly type: KvHintAction;
  readonly payload: Fields;
}

/**
 * Version of the hint format. docs/reference/kv-hints.md defines envelope, actions and payloads.
 */
const VERSION = "1";
const ID_CHARACTERS_MAX = 128;
/** Maximum marks used per request. As in Anthropic's API, the last ones are used. */
const MARKS_MAX = 4;
/** Default TTL of a mark (`_MAX`: maximum). These are Anthropic's values. */
const PIN_TTL_SECONDS = 300;
const PIN_TTL_SECONDS_MAX = 3_600;
const RETAIN_PRIORITY_MAX = 99;
const RETAIN_TTL_SECONDS = 600;
const DEMOTE_TTL_SECONDS = 3_600;
/**
 * Minimum additional tokens that a worker must have cached, compared with the chosen one, to be
 * named as a source.
 */
const SOURCE_TOKENS_MIN = 512;
const SOURCES_MAX = 4;
/** Owner of pins in requests that name no tenant. The policy `cache_control` uses the same name. */
const NO_TENANT = "api";

/** A worker's part of a request, for which hints are built. */
interface Task {
  readonly decision: RouteDecision;
  readonly part: ServedPart;
  /** For `decode`: true if the prefill worker named the agent that has its blocks. */
  readonly isSourceKnown?: boolean;
}

/**
 * Returns the request fields that carry KV hints to a worker. Empty if the worker accepts no hints
 * or there are none to send.
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

/**
 * Adds the hints to `custom_params`, which SGLang passes to its scheduler. Its values must be texts
 * or numbers, so the hints are sent as JSON text.
 */
function customParams({ body }: ProxyRequest, envelope: Fields): Fields {
  const own = body.fields.custom_params ?? {};
  return isFields(own) ? { custom_params: { ...own, kv_hints: stringifyJson(envelope) } } : {};
}

/**
 * Returns the field that carries hints to a worker. With `auto`: none unless the worker's agent
 * publishes block names, which proves that the engine has a Hearth connector. vLLM's OpenAI server
 * passes `kv_transfer_params` to the connector, SGLang passes `custom_params`.
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

/**
 * Returns the hint actions for a worker. The prefill worker receives those for the prompt, the
 * decode worker those for the answer.
 */
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
  // The first mark ends the prefix that sessions share: system prompt and tools. Only later blocks
  // are demoted.
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

/**
 * Returns a prefetch action that names workers with more of the prompt cached than the chosen one,
 * those with the most tokens first.
 */
function sourcesOf(
  { router, table }: ProxyParts,
  incoming: ProxyRequest,
  { target, terms }: RouteDecision,
): Action[] {
  if (!incoming.named.model.kvHintActions.includes("prefetch")) return [];
  const isOther = (one: Target) => one.worker !== target.worker && one.model === target.model;
  if (!table.targets.some((one) => isOther(one) && hasHearth(one))) return [];
  const { requestId: _, ...request } = routeRequestOf(incoming, []);
  // The router already counts this request's prompt as cached by the chosen worker, so use the
  // tokens from the decision.
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
  return [{ type: "prefetch", payload: { prefix_tokens: others[0].tokens, sources } }];
}

/** Returns true if a request has several prompts. Hints can describe only one. */
function isBatch(prompt: Json): boolean {
  return Array.isArray(prompt) && prompt.length > 1 && typeof prompt[0] !== "number";
}
