/** API whose format applies to errors and to the event that ends a broken stream. */
export type ErrorShape = "openai" | "responses" | "anthropic";

/**
 * API by whose rules the prompt is read from the body. `none`: the body has no prompt, or only the
 * worker can determine it.
 */
export type PromptPlace =
  | "chat"
  | "chat_batch"
  | "completions"
  | "responses"
  | "messages"
  | "embeddings"
  | "none";

/** A path whose requests are each forwarded to one worker. */
export interface EndpointSpec {
  readonly path: string;
  readonly prompt: PromptPlace;
  /** If true, the worker computes for the request, so it counts as load until it ends. */
  readonly isWork: boolean;
  /** Request field that limits output. Null: the proxy neither transfers KV nor sends KV hints. */
  readonly outputLimit: "max_tokens" | "max_output_tokens" | null;
  /** If true, the engine accepts `cache_salt` on this path. */
  readonly takesSalt: boolean;
  readonly shape: ErrorShape;
}

export type Endpoint =
  | { readonly kind: "ask"; readonly spec: EndpointSpec; readonly path: string }
  | { readonly kind: "models"; readonly id: string | null }
  /** Request about a stored response of OpenAI's Responses API. */
  | { readonly kind: "stored"; readonly id: string; readonly path: string }
  | { readonly kind: "health" | "load" | "version"; readonly path: string };

const GENERATES = { isWork: true, takesSalt: true, shape: "openai" } as const;
const EMBEDS = { ...GENERATES, outputLimit: null } as const;
const SCORES = { ...EMBEDS, prompt: "none", takesSalt: false } as const;
const LOOKS = { ...SCORES, isWork: false } as const;

const SPECS: readonly EndpointSpec[] = [
  { path: "/v1/chat/completions", prompt: "chat", outputLimit: "max_tokens", ...GENERATES },
  { path: "/v1/completions", prompt: "completions", outputLimit: "max_tokens", ...GENERATES },
  { path: "/v1/chat/completions/batch", prompt: "chat_batch", ...EMBEDS },
  {
    ...GENERATES,
    path: "/v1/responses",
    prompt: "responses",
    outputLimit: "max_output_tokens",
    shape: "responses",
  },
  {
    ...GENERATES,
    path: "/v1/messages",
    prompt: "messages",
    outputLimit: "max_tokens",
    shape: "anthropic",
  },
  { ...LOOKS, path: "/v1/messages/count_tokens", shape: "anthropic" },
  { path: "/v1/embeddings", prompt: "embeddings", ...EMBEDS },
  { path: "/v1/score", ...SCORES },
  { path: "/score", ...SCORES },
  { path: "/v1/rerank", ...SCORES },
  { path: "/v2/rerank", ...SCORES },
  { path: "/rerank", ...SCORES },
  { path: "/tokenize", ...LOOKS },
  { path: "/detokenize", ...LOOKS },
];

const SPEC_OF: ReadonlyMap<string, EndpointSpec> = new Map(SPECS.map((spec) => [spec.path, spec]));

/** Paths whose requests are forwarded to a worker. Used by authorization rules and tests. */
export const FORWARDED_PATHS: readonly string[] = SPECS.map(({ path }) => path);

/** Paths that the proxy answers itself, or forwards to any worker. */
const SIDE_PATHS: Readonly<
  Record<string, { kind: "health" | "load" | "version"; methods: readonly string[] }>
> = {
  "/ping": { kind: "health", methods: ["GET", "POST"] },
  "/health": { kind: "health", methods: ["GET"] },
  "/load": { kind: "load", methods: ["GET"] },
  "/version": { kind: "version", methods: ["GET"] },
};

const MODELS = "/v1/models";
const RESPONSES = "/v1/responses/";
const STORED_ID = /^[A-Za-z0-9_-]{1,128}$/;

/** Splits a URL into path and query. */
function targetOf(url: string): { readonly path: string; readonly query: string } {
  const start = url.indexOf("/", url.indexOf("://") + 3);
  if (start < 0) return { path: "/", query: "" };
  const query = url.indexOf("?", start);
  if (query < 0) return { path: url.slice(start), query: "" };
  return { path: url.slice(start, query), query: url.slice(query) };
}

/** Returns the error format of the API that a URL belongs to. */
export function shapeOf(url: string): ErrorShape {
  const { path } = targetOf(url);
  if (path.startsWith(RESPONSES)) return "responses";
  return SPEC_OF.get(path)?.shape ?? "openai";
}

/**
 * Returns the endpoint of a request. `unknown`: no such path. `method`: the path does not allow the
 * method.
 */
export function endpointOf(method: string, url: string): Endpoint | "unknown" | "method" {
  const { path, query } = targetOf(url);
  const spec = SPEC_OF.get(path);
  if (spec !== undefined) {
    return method === "POST" ? { kind: "ask", spec, path: `${path}${query}` } : "method";
  }
  const side = Object.hasOwn(SIDE_PATHS, path) ? SIDE_PATHS[path] : undefined;
  if (side !== undefined) {
    return side.methods.includes(method) ? { kind: side.kind, path } : "method";
  }
  if (path.startsWith(RESPONSES)) return storedOf(method, path, query);
  return modelsOf(method, path);
}

function storedOf(method: string, path: string, query: string): Endpoint | "unknown" | "method" {
  const [id = "", action, ...rest] = path.slice(RESPONSES.length).split("/");
  if (!STORED_ID.test(id) || rest.length > 0) return "unknown";
  if (action !== undefined && action !== "cancel") return "unknown";
  const wanted = action === undefined ? "GET" : "POST";
  return method === wanted ? { kind: "stored", id, path: `${path}${query}` } : "method";
}

function modelsOf(method: string, path: string): Endpoint | "unknown" | "method" {
  if (path !== MODELS && !path.startsWith(`${MODELS}/`)) return "unknown";
  if (method !== "GET") return "method";
  const id = path === MODELS ? null : path.slice(MODELS.length + 1);
  try {
    return { kind: "models", id: id === null ? null : decodeURIComponent(id) };
  } catch {
    return "unknown";
  }
}
