import { abortFault, type PublishOutcome } from "../../bus/index.ts";
import {
  type Clock,
  HearthError,
  type Json,
  messageOf,
  parseJson,
  type Random,
  sleep,
  stringifyJson,
} from "../../core/index.ts";
import { decodeReceipt, type Receipt, readReceipt } from "../index.ts";
import {
  absentMs,
  type BroadcastResult,
  type ControlClient,
  type FoundWorker,
  identified,
  isUnread,
  type SendOptions,
  type SendResult,
  type Wire,
  type WireCommand,
} from "./control-client.ts";
import { sendParts, splitCommand } from "./split-command.ts";

const DEADLINE_MS = 30_000;
const ASK_MS = 5_000;
const PROGRESS_EVERY_MS = 1_000;

export interface HttpClientOptions {
  readonly url: string;
  /** Bearer token to authenticate with. Null: none. */
  readonly token: string | null;
  readonly tls: TlsMaterial | null;
  /** Path of the agent's Unix socket. Null: connect over TCP. */
  readonly socket: string | null;
  readonly clock: Clock;
  readonly random: Random;
  readonly issuer: string | null;
  readonly wire: Wire;
}

export interface ReadOptions {
  /** Query parameters of the URL. Those with value null are left out. */
  readonly query?: Readonly<Record<string, string | number | boolean | null>>;
  readonly deadlineMs?: number;
  readonly signal?: AbortSignal;
}

/** Result of a GET request. `refused`: the agent replied with an error; `why` is its message. */
export type ReadResult =
  | { readonly kind: "document"; readonly document: Json }
  | {
      readonly kind: "refused" | "unreachable" | "unanswered";
      readonly status: number | null;
      readonly why: string;
    };

/**
 * A control client over HTTP, which can reach one agent. `worker` must be that agent's name, or
 * empty to accept any agent at the address; for another name nothing is sent. Broadcasts reach only
 * this agent.
 */
export interface HttpControlClient extends ControlClient {
  /** Requests a document from the agent, without retries. */
  get(path: string, options?: ReadOptions): Promise<ReadResult>;
  post(path: string, body: Json, options?: ReadOptions): Promise<ReadResult>;
}

interface Try {
  readonly endMs: number;
  readonly tries: number;
  /** True if an earlier attempt of this command may have been carried out. */
  readonly mayBeDone: boolean;
  readonly signal: AbortSignal;
}

type Tried =
  | { readonly kind: "result"; readonly result: SendResult }
  | { readonly kind: "again"; readonly why: string; readonly mayBeDone: boolean };

export class HttpClient implements HttpControlClient {
  readonly #options: HttpClientOptions;
  readonly #base: string;
  readonly #closing = new AbortController();
  #worker: FoundWorker | null = null;

  /** Checks the options. Throws USAGE if the URL is not valid. */
  constructor(options: HttpClientOptions) {
    this.#options = options;
    this.#base = baseOf(options.url);
  }

  /** Returns the address, or the path of the socket, for messages. */
  get #address(): string {
    return this.#options.socket ?? this.#base;
  }

  async send(worker: string, command: WireCommand, options: SendOptions = {}): Promise<SendResult> {
    const { clock, random } = this.#options;
    const sending = { clock, options, deadlineMs: DEADLINE_MS };
    return sendParts(splitCommand(command, random), sending, (part, own) =>
      this.#send(worker, part, own),
    );
  }

  async #send(worker: string, given: WireCommand, options: SendOptions): Promise<SendResult> {
    const { clock, random, issuer, wire } = this.#options;
    const { deadlineMs = DEADLINE_MS } = options;
    const identity = { random, issuer, clock: wire.isSigned ? clock : null };
    const command = identified(given, identity, deadlineMs);
    const endMs = clock.monotonicMs() + deadlineMs;
    const absentEndMs = clock.monotonicMs() + (options.absentMs ?? deadlineMs);
    const signal = this.#signal(options.signal);
    using _progress = this.#watch(command, options, signal);
    let tries = 0;
    let mayBeDone = false;
    for (;;) {
      const other = await this.#otherWorker(worker, endMs, signal);
      if (other !== null) return { kind: "unreachable", tries, why: other };
      tries++;
      const tried = await this.#try(worker, command, { endMs, tries, mayBeDone, signal });
      if (tried.kind === "result") return tried.result;
      mayBeDone ||= tried.mayBeDone;
      const waitMs = absentMs(tries, random);
      const lastMs = mayBeDone ? endMs : Math.min(endMs, absentEndMs);
      if (clock.monotonicMs() + waitMs >= lastMs) {
        return { kind: mayBeDone ? "unanswered" : "unreachable", tries, why: tried.why };
      }
      await sleep(clock, waitMs, signal);
    }
  }

  async broadcast(command: WireCommand, options: SendOptions = {}): Promise<BroadcastResult> {
    const result = await this.send("", command, options);
    if (result.kind === "receipt") return { receipts: [result.receipt], silent: [], why: null };
    return { receipts: [], silent: [], why: result.why };
  }

  async workers(ms = ASK_MS, signal?: AbortSignal): Promise<readonly FoundWorker[]> {
    const result = await this.#status(ms, signal);
    if (result.kind === "document") {
      const found = readStatus(result.document);
      return found === null ? [] : [found];
    }
    const code = result.kind === "refused" ? "ENGINE_REFUSED" : "DEADLINE";
    throw new HearthError(code, result.why);
  }

  publish(worker: string, command: WireCommand): PublishOutcome {
    // `publish` reports no failures; closing the client makes pending commands fail.
    this.send(worker, command).catch(() => undefined);
    return "sent";
  }

  async get(path: string, options: ReadOptions = {}): Promise<ReadResult> {
    return this.#read("GET", path, undefined, options);
  }

  async post(path: string, body: Json, options: ReadOptions = {}): Promise<ReadResult> {
    const data = new TextEncoder().encode(stringifyJson(body));
    const headers = { "Content-Type": "application/json" };
    return this.#read("POST", path, { headers, data }, options);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort(closed());
  }

  async #try(
    worker: string,
    command: WireCommand,
    { endMs, tries, mayBeDone, signal }: Try,
  ): Promise<Tried> {
    const { clock, wire } = this.#options;
    const body = wire.encode(command);
    const signedFor = worker === "" ? (this.#worker?.id ?? "") : worker;
    const outcome = await this.#request({
      method: "POST",
      path: "/v1/commands",
      body: { headers: wire.headers(signedFor, body), data: body },
      timeoutMs: endMs - clock.monotonicMs(),
      signal,
    });
    if (outcome.kind !== "answer") return withoutAnswer(this.#address, outcome, tries);
    const { status, contentType, data } = outcome;
    const receipt = decodeReceipt(data, contentType);
    if (receipt !== null && mayBeDone && isUnread(receipt)) {
      return { kind: "again", why: receipt.reason ?? "busy", mayBeDone: false };
    }
    if (receipt !== null) return { kind: "result", result: ofWorker(worker, receipt, tries) };
    const why = problemText(status, data);
    if (status >= 500 && status !== 501) return { kind: "again", why, mayBeDone: status !== 503 };
    return { kind: "result", result: { kind: "refused", tries, why, status } };
  }

  #status(deadlineMs: number, signal: AbortSignal | undefined): Promise<ReadResult> {
    return this.get("/v1/status", { deadlineMs, ...(signal === undefined ? {} : { signal }) });
  }

  /**
   * Returns why the agent at the address is not `worker`. Null if it is, or if the agent does not
   * state its name.
   */
  async #otherWorker(worker: string, endMs: number, signal: AbortSignal): Promise<string | null> {
    // An unsigned command can be sent without the worker's name; a signature must contain it.
    if (worker === "" && !this.#options.wire.isSigned) return null;
    const ms = Math.min(ASK_MS, endMs - this.#options.clock.monotonicMs());
    if (this.#worker === null) {
      // A failure of this request is ignored, because the command itself will fail for the same
      // reason and report it.
      const result = await this.#status(ms, signal);
      this.#worker = result.kind === "document" ? readStatus(result.document) : null;
    }
    const id = this.#worker?.id ?? worker;
    return worker === "" || id === worker ? null : `${this.#address} is ${id}, not ${worker}`;
  }

  /** Requests the command's progress periodically until its receipt arrives. */
  #watch(command: WireCommand, options: SendOptions, signal: AbortSignal): Disposable {
    const { onProgress } = options;
    const { id, issuer } = command;
    if (onProgress === undefined || typeof id !== "string") {
      return { [Symbol.dispose]: () => undefined };
    }
    const query = { issuer: typeof issuer === "string" ? issuer : null };
    let isOver = false;
    const ask = async () => {
      const path = `/v1/commands/${encodeURIComponent(id)}`;
      const result = await this.get(path, { query, deadlineMs: ASK_MS, signal });
      const receipt = result.kind === "document" ? readReceipt(result.document) : null;
      if (!isOver && receipt?.status === "running") onProgress(receipt);
    };
    const timer = this.#options.clock.every(PROGRESS_EVERY_MS, () => {
      // A failure is ignored, because the request for the receipt reports it.
      ask().catch(() => undefined);
    });
    return {
      [Symbol.dispose]() {
        isOver = true;
        timer[Symbol.dispose]();
      },
    };
  }

  async #read(
    method: "GET" | "POST",
    path: string,
    body: HttpRequest["body"],
    options: ReadOptions,
  ): Promise<ReadResult> {
    const outcome = await this.#request({
      method,
      path: `${path}${queryOf(options.query ?? {})}`,
      ...(body === undefined ? {} : { body }),
      timeoutMs: options.deadlineMs ?? DEADLINE_MS,
      signal: this.#signal(options.signal),
    });
    if (outcome.kind === "timeout") {
      return { kind: "unanswered", status: null, why: "no answer before the deadline" };
    }
    if (outcome.kind !== "answer") return { kind: "unreachable", status: null, why: outcome.why };
    const { status, data } = outcome;
    if (status >= 200 && status < 300) return { kind: "document", document: jsonOf(data) };
    return { kind: "refused", status, why: problemText(status, data) };
  }

  /**
   * Sends one HTTP request. Follows no redirects and uses no proxy, because the token is meant only
   * for this agent. Rejects with ABORTED when the signal fires.
   */
  async #request({ method, path, body, timeoutMs, signal }: HttpRequest): Promise<HttpOutcome> {
    if (signal.aborted) throw abortFault(signal);
    const { clock, token, tls, socket } = this.#options;
    const late = new AbortController();
    using _timer = clock.after(Math.max(0, timeoutMs), () => late.abort());
    try {
      const response = await directFetch(`${this.#base}${path}`, {
        method,
        headers: {
          ...(token === null ? {} : { authorization: `Bearer ${token}` }),
          ...body?.headers,
        },
        ...(socket === null ? {} : { unix: socket }),
        ...(body === undefined ? {} : { body: body.data }),
        ...(tls === null ? {} : { tls }),
        redirect: "manual",
        // `signal` already limits the time; the runtime's own timeout of five minutes must not.
        timeout: false,
        signal: AbortSignal.any([signal, late.signal]),
      });
      const contentType = response.headers.get("content-type") ?? "";
      const data = await response.bytes();
      return { kind: "answer", status: response.status, contentType, data };
    } catch (thrown) {
      if (signal.aborted) throw abortFault(signal);
      return late.signal.aborted ? { kind: "timeout" } : outcomeOf(thrown, this.#address);
    }
  }

  #signal(signal: AbortSignal | undefined): AbortSignal {
    if (this.#closing.signal.aborted) throw closed();
    return signal === undefined
      ? this.#closing.signal
      : AbortSignal.any([signal, this.#closing.signal]);
  }
}

function closed(): HearthError {
  return new HearthError("ENGINE_CLOSED", "the control client was closed");
}

function withoutAnswer(
  url: string,
  outcome: Exclude<HttpOutcome, { kind: "answer" }>,
  tries: number,
): Tried {
  switch (outcome.kind) {
    case "absent":
      return { kind: "again", why: outcome.why, mayBeDone: false };
    case "broken":
      return { kind: "again", why: outcome.why, mayBeDone: true };
    case "distrusted":
      return { kind: "result", result: { kind: "refused", tries, why: outcome.why } };
    case "timeout":
      return { kind: "again", why: `${url} did not answer`, mayBeDone: true };
    default:
      return outcome satisfies never;
  }
}

/**
 * Checks that a receipt comes from `worker`. A different agent may have taken over the address
 * since the name was checked.
 */
function ofWorker(worker: string, receipt: Receipt, tries: number): SendResult {
  if (worker === "" || receipt.worker_id === worker) return { kind: "receipt", receipt };
  const why = `${receipt.worker_id} answered instead of ${worker}`;
  return { kind: "unreachable", tries, why };
}

function readStatus(document: Json): FoundWorker | null {
  if (typeof document !== "object" || document === null || Array.isArray(document)) return null;
  const { worker_id, version, incarnation } = document;
  if (typeof worker_id !== "string" || typeof version !== "string") return null;
  return { id: worker_id, version, incarnation: String(incarnation) };
}

function queryOf(query: NonNullable<ReadOptions["query"]>): string {
  const members = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null) members.set(name, String(value));
  }
  return members.size === 0 ? "" : `?${members}`;
}

/**
 * TLS certificates and key as PEM texts. `cert` and `key` authenticate this client; `ca` adds
 * trusted authorities to those of the system.
 */
export interface TlsMaterial {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

interface HttpRequest {
  readonly method: "GET" | "POST";
  /** Path of the URL, with the query. */
  readonly path: string;
  readonly body?: {
    /** Headers of the request, `Content-Type` included. */
    readonly headers: Readonly<Record<string, string>>;
    readonly data: Uint8Array;
  };
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * Result of one HTTP request. `absent`: the connection was not accepted, so the agent did nothing.
 * `broken`: the connection ended before the reply. `distrusted`: the server's certificate is not
 * trusted, or the server requires a client certificate.
 */
type HttpOutcome =
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

function outcomeOf(thrown: unknown, address: string): HttpOutcome {
  const code = String((thrown as { code?: unknown }).code ?? "");
  if (DISTRUST.test(code)) return { kind: "distrusted", why: messageOf(thrown) };
  if (ABSENT_CODES.has(code))
    return { kind: "absent", why: `no connection to ${address} (${code})` };
  return { kind: "broken", why: `connection to ${address} lost (${code})` };
}

/**
 * Returns the base URL. Throws USAGE if the text is not a URL, or contains credentials or other
 * unsupported parts.
 */
function baseOf(given: string): string {
  const url = URL.parse(given);
  const isHttp = url !== null && (url.protocol === "http:" || url.protocol === "https:");
  if (!isHttp) {
    throw new HearthError("USAGE", "the agent's address is not an http:// or https:// URL", {
      fix: "give an address such as http://127.0.0.1:7171",
    });
  }
  if (url.username !== "" || url.password !== "") {
    throw new HearthError("USAGE", "the agent's address contains credentials", {
      fix: "use a token instead",
    });
  }
  return `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
}

/** Parses the body as JSON. Null if it is not valid. */
function jsonOf(data: Uint8Array): Json {
  try {
    return parseJson(new TextDecoder().decode(data));
  } catch {
    return null;
  }
}

/** Returns the message of an error reply: the problem's detail, or else the status. */
function problemText(status: number, data: Uint8Array): string {
  const body = jsonOf(data);
  if (typeof body !== "object" || body === null || Array.isArray(body)) return `HTTP ${status}`;
  const { detail, fix } = body;
  if (typeof detail !== "string") return `HTTP ${status}`;
  return typeof fix === "string" ? `${detail}: ${fix}` : detail;
}

const VARIABLES = ["NO_PROXY", "no_proxy"] as const;

/**
 * Calls `fetch` without the proxy that environment variables may name. A proxy would receive the
 * token, and for it `http://127.0.0.1` is a different host. The runtime has no option for this, so
 * the function changes the environment during the call; the runtime reads it before `fetch` returns
 * its promise, so no other code sees the change.
 */
function directFetch(url: string, init: BunFetchRequestInit): Promise<Response> {
  const before = VARIABLES.map((name) => process.env[name]);
  for (const name of VARIABLES) process.env[name] = "*";
  try {
    return fetch(url, init);
  } finally {
    for (const [index, name] of VARIABLES.entries()) {
      const value = before[index];
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  }
}
