import { parseJson, stringifyJson } from "../../src/core/index.ts";

export interface Seen {
  readonly method: string;
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
  readonly token: string | null;
  readonly contentType: string | null;
  /** Undefined if the request had no body, or one that is not JSON. */
  readonly body: unknown;
}

/** A route's answer: a document with status 200, or a complete response. */
export type Answer = (seen: Seen) => unknown;

/** The HTTP side of an agent: records requests and sends the answers that a test chose. */
export class FakeAgent implements AsyncDisposable {
  readonly seen: Seen[] = [];
  readonly #routes: Record<string, Answer>;
  readonly #server: Bun.Server<undefined>;

  /** `routes`: by method and path, as in `GET /v1/pins`. */
  constructor(routes: Record<string, Answer>, tls?: Bun.TLSOptions) {
    this.#routes = { "GET /v1/status": () => STATUS, ...routes };
    this.#server = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      ...(tls === undefined ? {} : { tls }),
      fetch: (request) => this.#answer(request),
    });
  }

  get url(): string {
    return `${this.#server.url.protocol}//127.0.0.1:${this.#server.port}`;
  }

  /** Bodies of the commands that came. */
  get commands(): unknown[] {
    return this.seen.filter(({ path }) => path === "/v1/commands").map(({ body }) => body);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#server.stop(true);
  }

  async #answer(request: Request): Promise<Response> {
    const url = new URL(request.url);
    const text = await request.text();
    const seen: Seen = {
      method: request.method,
      path: url.pathname,
      query: Object.fromEntries(url.searchParams),
      token: request.headers.get("authorization"),
      contentType: request.headers.get("content-type"),
      body: bodyOf(text),
    };
    this.seen.push(seen);
    const route = this.#routes[`${seen.method} ${seen.path}`];
    if (route === undefined) return problem(404, `there is no ${seen.path}`);
    const answer = await route(seen);
    return answer instanceof Response ? answer : json(answer);
  }
}

function bodyOf(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

export function json(document: unknown, status = 200): Response {
  const headers = { "content-type": "application/json" };
  return new Response(stringifyJson(document), { status, headers });
}

export function problem(status: number, detail: string, fix?: string): Response {
  const headers = { "content-type": "application/problem+json" };
  const body = { type: "about:blank", title: "No", status, detail, code: "NO", fix };
  return new Response(JSON.stringify(body), { status, headers });
}

export const STATUS = {
  version: "0.1.0",
  worker_id: "node-1",
  incarnation: "18446744073709551615",
  state: "ready",
  uptime_seconds: 5400,
  ram: { blocks: 12, bytes: 3221225472, capacity_bytes: 4294967296, slots: [] },
  ssd: null,
  control: {
    pins: { holds: 2, blocks: 5, bytes: 20_480 },
    kept_bytes: 20_480,
    kept_bytes_max: 2147483648,
    ledger_pending: 3,
    ledger_failing: "no space",
  },
  namespaces: ["ab".repeat(32), `abcd${"ef".repeat(30)}`],
  nats: { status: "reconnecting", server: null, why: "refused", queued: 4 },
  health: [{ severity: "warn", code: "SSD_SLOW", meaning: "the SSD is slow" }],
  build: { commit: "abc" },
};

/** A receipt about these blocks; their outcomes decide its counts and its status. */
export function receipt(
  blocks: readonly { block: unknown; outcome: string; reason?: string; by?: unknown }[],
  members: Readonly<Record<string, unknown>> = {},
) {
  const counts = { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };
  for (const { outcome } of blocks) counts[outcome as keyof typeof counts]++;
  const isWhole = counts.done + counts.already === blocks.length;
  return {
    ...{ id: "1", type: "Cache", worker_id: "node-1", incarnation: "7", issuer: "local" },
    ...{ status: isWhole ? "ok" : "partial", counts, blocks, elapsed_ms: 1.234, ...members },
  };
}
