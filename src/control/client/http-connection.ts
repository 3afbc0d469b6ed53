import { type Clock, HearthError, type Json, messageOf, parseJson } from "../../core/index.ts";
import { abortFault } from "./abort.ts";
import { directFetch } from "./direct-fetch.ts";

/** PEM texts. `cert` and `key` show who we are; `ca` says whom we believe beside the system's. */
export interface TlsMaterial {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

export interface HttpRequest {
  readonly method: "GET" | "POST";
  /** With its query. */
  readonly path: string;
  readonly body?: {
    /** `Content-Type` among them. */
    readonly headers: Readonly<Record<string, string>>;
    readonly data: Uint8Array;
  };
  readonly timeoutMs: number;
  readonly signal: AbortSignal | undefined;
}

/**
 * `absent`: nobody took the connection, so nothing was done. `broken`: it ended before an answer
 * came. `distrusted`: who answered has a certificate that is not believed, or wants one of ours.
 */
export type HttpOutcome =
  | {
      readonly kind: "answer";
      readonly status: number;
      readonly contentType: string;
      readonly data: Uint8Array;
    }
  | { readonly kind: "absent" | "broken" | "distrusted"; readonly why: string }
  | { readonly kind: "timeout" };

const ABSENT_CODES: ReadonlySet<string> = new Set([
  "ConnectionRefused",
  "FailedToOpenSocket",
  "ECONNREFUSED",
  "ENOTFOUND",
  "EHOSTUNREACH",
  "ENETUNREACH",
]);
const DISTRUST = /CERT|SIGNATURE|TLS|SSL|ISSUER/;

export interface HttpConnectionOptions {
  readonly clock: Clock;
  readonly token: string | null;
  readonly tls: TlsMaterial | null;
  /** Path of a Unix socket; null: over TCP. */
  readonly socket: string | null;
}

/** Requests to one agent. Follows no redirects and asks no proxy: a token is for whom it is. */
export class HttpConnection {
  /** As people know it: the address, or the path of the socket. */
  readonly url: string;
  readonly #base: string;
  readonly #clock: Clock;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #tls: TlsMaterial | null;
  readonly #unix: { readonly unix?: string };

  constructor(url: string, { clock, token, tls, socket }: HttpConnectionOptions) {
    const base = baseOf(url);
    this.#unix = socket === null ? {} : { unix: socket };
    this.#base = base;
    this.url = socket ?? base;
    this.#clock = clock;
    this.#headers = token === null ? {} : { authorization: `Bearer ${token}` };
    this.#tls = tls;
  }

  /** Rejects with ABORTED when the signal fires. */
  async request(request: HttpRequest): Promise<HttpOutcome> {
    const { method, path, body, timeoutMs, signal } = request;
    if (signal?.aborted) throw abortFault(signal);
    const controller = new AbortController();
    const end = () => controller.abort();
    const timer = this.#clock.after(Math.max(0, timeoutMs), end);
    signal?.addEventListener("abort", end, { once: true });
    try {
      const response = await directFetch(`${this.#base}${path}`, {
        method,
        headers: { ...this.#headers, ...body?.headers },
        ...this.#unix,
        ...(body === undefined ? {} : { body: body.data }),
        ...(this.#tls === null ? {} : { tls: this.#tls }),
        redirect: "manual",
        // Ours is the deadline; the runtime's own would be five minutes.
        timeout: false,
        signal: controller.signal,
      });
      const contentType = response.headers.get("content-type") ?? "";
      const data = await response.bytes();
      return { kind: "answer", status: response.status, contentType, data };
    } catch (thrown) {
      if (signal?.aborted) throw abortFault(signal);
      return controller.signal.aborted ? { kind: "timeout" } : this.#outcomeOf(thrown);
    } finally {
      timer[Symbol.dispose]();
      signal?.removeEventListener("abort", end);
    }
  }

  #outcomeOf(thrown: unknown): HttpOutcome {
    const code = String((thrown as { code?: unknown }).code ?? "");
    if (DISTRUST.test(code)) return { kind: "distrusted", why: messageOf(thrown) };
    if (ABSENT_CODES.has(code)) {
      return { kind: "absent", why: `nobody answers at ${this.url} (${code})` };
    }
    return { kind: "broken", why: `the connection to ${this.url} broke (${code})` };
  }
}

/** Throws USAGE where it is no address, or has something in it that is a secret or not ours. */
function baseOf(given: string): string {
  const url = URL.parse(given);
  const isHttp = url !== null && (url.protocol === "http:" || url.protocol === "https:");
  if (!isHttp) {
    throw new HearthError("USAGE", "the address of an agent is no http:// or https:// URL", {
      fix: "give it as in http://127.0.0.1:7171",
    });
  }
  if (url.username !== "" || url.password !== "") {
    throw new HearthError("USAGE", "the address of an agent holds credentials", {
      fix: "give a token instead",
    });
  }
  return `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
}

/** The body as JSON; null where it is none. */
export function jsonOf(data: Uint8Array): Json {
  try {
    return parseJson(new TextDecoder().decode(data));
  } catch {
    return null;
  }
}

/** What an answer that is an error says: a problem's words, or its status. */
export function problemText(status: number, data: Uint8Array): string {
  const body = jsonOf(data);
  if (typeof body !== "object" || body === null || Array.isArray(body)) return `HTTP ${status}`;
  const { detail, fix } = body;
  if (typeof detail !== "string") return `HTTP ${status}`;
  return typeof fix === "string" ? `${detail}: ${fix}` : detail;
}
