import { isWorkerId, type Json, type WorkerId } from "../../core/index.ts";
import type { RouteOverrides } from "../index.ts";
import { type Fields, isFields } from "./request-body.ts";

/** Values from a request's headers and fields that affect routing, other than its prompt. */
export interface Hints {
  readonly sessionId: string | null;
  readonly parentSessionId: string | null;
  readonly isSessionEnd: boolean;
  /** Priority in the wait queue. Higher values are served first. */
  readonly priority: number | null;
  readonly cacheSalt: string | null;
  /** True if a header gives the salt. It overrides the body, so the body must be changed. */
  readonly isSaltFromHeader: boolean;
  readonly expectedOutputTokens: number | null;
  readonly overrides: RouteOverrides;
}

/**
 * Headers that name a session: those of Dynamo, Claude Code, and Codex, which renamed its header
 * twice.
 */
const SESSION_HEADERS = [
  "x-dynamo-session-id",
  "x-claude-code-session-id",
  "thread-id",
  "session-id",
  "session_id",
];
const PARENT_HEADERS = [
  "x-dynamo-parent-session-id",
  "x-codex-parent-thread-id",
  "x-parent-session-id",
];
/** Maximum length of a name, because tables store it. Longer names are cut. */
const NAME_MAX = 256;
const PRIORITY_MAX = 2 ** 31 - 1;

export function hintsOf(headers: Headers, body: Fields, clientsMayRoute: boolean): Hints {
  const nvext = objectOf(body.nvext);
  const agent = objectOf(nvext.agent_hints);
  const tenant = nameOf(headers.get("x-tenant-id"));
  return {
    sessionId: sessionOf(headers, body),
    parentSessionId: first(PARENT_HEADERS.map((name) => headers.get(name))),
    isSessionEnd: headers.get("x-dynamo-session-final")?.toLowerCase() === "true",
    priority: priorityOf(headers, agent),
    cacheSalt: tenant ?? nameOf(body.cache_salt) ?? nameOf(nvext.cache_salt),
    isSaltFromHeader: tenant !== null && tenant !== body.cache_salt,
    expectedOutputTokens: countOf(agent.osl),
    overrides: clientsMayRoute ? overridesOf(headers) : {},
  };
}

/**
 * Returns the session id of a request. Claude Code's agent id is part of it, because each agent of
 * a session has its own prompts. Without a session header, uses the user fields of OpenAI's and
 * Anthropic's APIs.
 */
function sessionOf(headers: Headers, body: Fields): string | null {
  const session = first(SESSION_HEADERS.map((name) => headers.get(name)));
  const agent = nameOf(headers.get("x-claude-code-agent-id"));
  if (session !== null) return agent === null ? session : nameOf(`${session}/${agent}`);
  const { user_id: anthropicUser } = objectOf(body.metadata);
  const named = [body.session_id, body.prompt_cache_key, body.user, anthropicUser];
  return first([headers.get("x-session-id"), ...named]);
}

function priorityOf(headers: Headers, agent: Fields): number | null {
  const strict = numberOf(headers.get("x-dynamo-request-strict-priority") ?? agent.strict_priority);
  const usual = numberOf(headers.get("x-dynamo-request-priority") ?? agent.priority);
  if (strict === null) return usual;
  // A strict tier ranks above every priority of the tiers below it.
  return strict * 2 ** 32 + (usual ?? 0);
}

function overridesOf(headers: Headers): RouteOverrides {
  const worker = headers.get("x-dynamo-worker-instance-id");
  const rank = countOf(
    headers.get("x-dynamo-dp-rank") ?? headers.get("x-data-parallel-rank") ?? undefined,
  );
  const named: { worker?: WorkerId; rank?: number } = {};
  if (worker !== null && isWorkerId(worker)) named.worker = worker;
  if (rank !== null) named.rank = rank;
  return named;
}

function objectOf(value: Json | undefined): Fields {
  return isFields(value) ? value : {};
}

function nameOf(value: Json | undefined): string | null {
  return typeof value === "string" && value !== "" ? value.slice(0, NAME_MAX) : null;
}

function first(values: readonly (Json | undefined)[]): string | null {
  for (const value of values) {
    const name = nameOf(value);
    if (name !== null) return name;
  }
  return null;
}

function numberOf(value: Json | undefined): number | null {
  const number = typeof value === "string" && value.trim() !== "" ? Number(value) : value;
  if (typeof number !== "number" || !Number.isInteger(number)) return null;
  return Math.abs(number) <= PRIORITY_MAX ? number : null;
}

function countOf(value: Json | undefined): number | null {
  const number = numberOf(value);
  return number !== null && number >= 0 ? number : null;
}
