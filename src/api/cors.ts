/** Browsers ask again after this time, in seconds. */
const MAX_AGE_SECONDS = 600;
const METHODS = "GET, POST, OPTIONS";
/** What pages may read of an answer, beside what they always may. */
const EXPOSED = "x-hearth-request-id, x-hearth-worker, x-request-id, retry-after";

/** Which pages of other origins may use a server from a browser. */
export class Cors {
  readonly #origins: ReadonlySet<string>;

  /** `*` is every origin; without any, nothing is added to an answer. */
  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
  }

  allows(origin: string): boolean {
    return this.#origins.has("*") || this.#origins.has(origin);
  }

  /** The answer to a browser that asks beforehand, without credentials; null: it does not ask. */
  preflight({ method, headers }: Request): Response | null {
    const origin = headers.get("origin");
    const wanted = headers.get("access-control-request-method");
    if (method !== "OPTIONS" || origin === null || wanted === null) return null;
    if (!this.allows(origin)) return null;
    const answer = new Headers({
      "access-control-allow-methods": METHODS,
      "access-control-max-age": String(MAX_AGE_SECONDS),
    });
    // Header names are those that the page asks for: engines take many.
    const asked = headers.get("access-control-request-headers");
    if (asked !== null) answer.set("access-control-allow-headers", asked);
    return this.#marked(origin, new Response(null, { status: 204, headers: answer }));
  }

  /** Lets the page read the answer. */
  mark({ headers }: Request, answer: Response): Response {
    const origin = headers.get("origin");
    if (origin === null || !this.allows(origin)) return answer;
    answer.headers.set("access-control-expose-headers", EXPOSED);
    return this.#marked(origin, answer);
  }

  #marked(origin: string, answer: Response): Response {
    // A worker may have said the same of itself; browsers refuse an answer that says it twice.
    answer.headers.set("access-control-allow-origin", origin);
    answer.headers.append("vary", "Origin");
    return answer;
  }
}
