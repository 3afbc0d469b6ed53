import {
  type ClientRequest,
  Agent as HttpAgent,
  type IncomingMessage,
  request as requestHttp,
} from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { type Clock, messageOf } from "../../core/index.ts";
import { isShortOfDescriptors } from "../../observability/index.ts";
import { type Authorization, type HeaderPairs, ownHeaders } from "./headers.ts";

/** An HTTP request to a worker. */
export interface UpstreamOrder {
  readonly method: "GET" | "POST";
  /** `http:` or `https:` URL, including the path. */
  readonly url: string;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: Uint8Array | null;
  readonly waits: UpstreamWaits;
}

/** Timeouts of a request, in ms. */
export interface UpstreamWaits {
  readonly connectMs: number;
  /** Maximum time from the last byte of the request to the first byte of the answer's body. */
  readonly firstByteMs: number;
  /** Maximum time between two pieces of the body. Runs only while a reader waits. */
  readonly idleMs: number;
}

/**
 * Stage at which a request failed. `unsendable`: the request cannot be made, or this process has no
 * free descriptor; no worker was tried. `connect`: nothing was sent. `sent`: the worker had
 * received the request and disconnected. `garbled`: the answer is not valid HTTP. `late`: no data
 * arrived within the timeout. `closed`: the proxy closed the connection.
 */
export type FailureStage = "unsendable" | "connect" | "sent" | "garbled" | "late" | "closed";

export interface UpstreamFailure {
  readonly kind: "failed";
  readonly stage: FailureStage;
  readonly why: string;
}

export type UpstreamPiece =
  | { readonly kind: "bytes"; readonly bytes: Uint8Array<ArrayBuffer> }
  | { readonly kind: "end" }
  | UpstreamFailure;

export interface UpstreamAnswer {
  readonly kind: "answer";
  readonly status: number;
  readonly headers: HeaderPairs;
  /**
   * Reads the next piece. Only one read at a time. Returns `end` or `failed` again if called after
   * it.
   */
  read(): Promise<UpstreamPiece>;
  /** Closes the connection immediately. */
  close(): void;
}

/** A request that the proxy itself makes, not for one client. */
export interface OwnOrder {
  /** `url` of the worker, without the path. */
  readonly url: string;
  readonly path: string;
  readonly authorization: Authorization;
  /** Timeout in ms of each step: connecting, the first byte, and each further piece. */
  readonly timeoutMs: number;
  readonly bytesMax: number;
}

/** Fetches a complete answer of a worker as text. Never rejects. */
export async function getText(
  upstream: Upstream,
  { url, path, authorization, timeoutMs, bytesMax }: OwnOrder,
  signal: AbortSignal,
): Promise<
  { readonly kind: "text"; readonly status: number; readonly text: string } | UpstreamFailure
> {
  const waits = { connectMs: timeoutMs, firstByteMs: timeoutMs, idleMs: timeoutMs };
  const headers = ownHeaders(authorization);
  const order = { method: "GET", url: addressAt(url, path), headers, body: null, waits } as const;
  const answer = await upstream.open(order, signal);
  if (answer.kind === "failed") return answer;
  const text = await readAll(answer, bytesMax);
  if (text === null) return failed("sent", "the answer broke off");
  return { kind: "text", status: answer.status, text };
}

/** Maximum idle connections to keep per worker. */
const IDLE_SOCKETS_MAX = 64;
/**
 * Time in ms after reuse within which a connection breaks if the worker closed it while it was
 * idle.
 */
const STALE_MS = 1_000;

interface Agents {
  readonly http: HttpAgent;
  readonly https: HttpsAgent;
}

/**
 * Sends requests to workers over HTTP/1.1. Forwards bodies without decompressing them. Does not use
 * `fetch`, which the runtime limits to 256 concurrent requests: a stream of tokens takes minutes.
 */
export class Upstream implements Disposable {
  readonly #clock: Clock;
  readonly #onShort: () => void;
  readonly #agents: Agents;

  /** `onShort` is called if this process has no free file descriptor for a connection. */
  constructor(clock: Clock, onShort: () => void = () => {}) {
    [this.#clock, this.#onShort] = [clock, onShort];
    const maxSockets = Number.POSITIVE_INFINITY;
    const options = { keepAlive: true, maxSockets, maxFreeSockets: IDLE_SOCKETS_MAX };
    this.#agents = { http: new HttpAgent(options), https: new HttpsAgent(options) };
  }

  /**
   * Sends a request. Resolves when the answer's head has arrived. Never rejects. The signal closes
   * the connection, even while the body arrives.
   */
  async open(order: UpstreamOrder, signal: AbortSignal): Promise<UpstreamAnswer | UpstreamFailure> {
    const outcome = await this.#open(order, signal);
    // Without a free descriptor, the runtime's client reports ECONNREFUSED. No worker refused the
    // connection then.
    const isConnect = outcome.kind === "failed" && outcome.stage === "connect";
    if (!isConnect || !isShortOfDescriptors()) return outcome;
    this.#onShort();
    return failed("unsendable", `out of file descriptors: ${outcome.why}`);
  }

  [Symbol.dispose](): void {
    this.#agents.http.destroy();
    this.#agents.https.destroy();
  }

  async #open(order: UpstreamOrder, signal: AbortSignal) {
    const startMs = this.#clock.monotonicMs();
    const first = new Exchange(order, this.#clock, this.#agents);
    const outcome = await first.run(signal);
    if (outcome.kind !== "failed" || outcome.stage !== "sent" || !first.isReused) return outcome;
    // A worker may close an idle connection just as it is reused. The request then fails at once
    // and may be resent.
    if (this.#clock.monotonicMs() - startMs > STALE_MS) return outcome;
    const second = await new Exchange(order, this.#clock, null).run(signal);
    // The worker is gone. It may have received the first request, so report `sent`.
    const isGone = second.kind === "failed" && second.stage === "connect";
    return isGone ? ({ ...second, stage: "sent" } as const) : second;
  }
}

/** One request and its answer. If `agents` is null, it opens a new connection. */
class Exchange {
  readonly #order: UpstreamOrder;
  readonly #clock: Clock;
  readonly #agents: Agents | null;
  #outgoing: ClientRequest | null = null;
  #body: BodyQueue | null = null;
  #timer: Disposable | null = null;
  #stage: FailureStage = "connect";
  #resolve: ((outcome: UpstreamAnswer | UpstreamFailure) => void) | null = null;
  isReused = false;

  constructor(order: UpstreamOrder, clock: Clock, agents: Agents | null) {
    [this.#order, this.#clock, this.#agents] = [order, clock, agents];
  }

  run(signal: AbortSignal): Promise<UpstreamAnswer | UpstreamFailure> {
    if (signal.aborted) return Promise.resolve(failed("closed", "the client disconnected"));
    const onAbort = () => this.close("the client disconnected");
    signal.addEventListener("abort", onAbort, { once: true });
    return new Promise((resolve) => {
      this.#resolve = resolve;
      try {
        this.#outgoing = this.#send(() => signal.removeEventListener("abort", onAbort));
      } catch (thrown) {
        signal.removeEventListener("abort", onAbort);
        // No connection exists yet, so the request or the worker's URL is invalid.
        this.#settle(failed("unsendable", messageOf(thrown)));
      }
    });
  }

  close(why: string): void {
    this.#settle(failed("closed", why));
    this.#body?.fail("closed", why);
    this.#outgoing?.destroy();
  }

  #send(onClosed: () => void): ClientRequest {
    const { waits, body } = this.#order;
    const { connectMs, firstByteMs } = waits;
    const outgoing = start(this.#order, this.#agents);
    this.#wait(connectMs, `no connection within ${connectMs} ms`);
    outgoing.on("error", (error) => {
      const stage = this.#stage === "sent" ? stageOfError(error) : this.#stage;
      this.#settle(failed(stage, error.message));
    });
    outgoing.on("close", () => {
      this.#settle(failed(this.#stage, "the connection closed before an answer"));
      onClosed();
    });
    outgoing.on("socket", (socket) => {
      const isSecure = this.#order.url.startsWith("https:");
      const onConnected = () => {
        this.#stage = "sent";
        this.isReused = outgoing.reusedSocket;
        if (this.#resolve === null) return;
        this.#wait(firstByteMs, `no answer within ${firstByteMs} ms`, "late");
      };
      if (outgoing.reusedSocket) onConnected();
      else socket.once(isSecure ? "secureConnect" : "connect", onConnected);
    });
    outgoing.on("response", (message) => this.#answered(message));
    outgoing.end(body ?? undefined);
    return outgoing;
  }

  #answered(message: IncomingMessage): void {
    if (this.#resolve === null) return void message.destroy();
    const body = new BodyQueue(message, this.#clock, this.#order.waits);
    this.#body = body;
    this.#settle({
      kind: "answer",
      status: message.statusCode ?? 0,
      headers: pairsOf(message.rawHeaders),
      read: () => body.read(),
      close: () => this.close("closed"),
    });
  }

  #wait(ms: number, why: string, stage: FailureStage = this.#stage): void {
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.#clock.after(ms, () => {
      this.#settle(failed(stage, why));
      this.#outgoing?.destroy();
    });
  }

  #settle(outcome: UpstreamAnswer | UpstreamFailure): void {
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
    const resolve = this.#resolve;
    this.#resolve = null;
    resolve?.(outcome);
  }
}

function start(order: UpstreamOrder, agents: Agents | null): ClientRequest {
  const headers: Record<string, string> = Object.fromEntries(order.headers);
  if (order.body !== null) headers["content-length"] = String(order.body.length);
  const url = new URL(order.url);
  const { method } = order;
  if (url.protocol === "https:") {
    return requestHttps(url, { method, headers, agent: agents?.https ?? false });
  }
  return requestHttp(url, { method, headers, agent: agents?.http ?? false });
}

function pairsOf(raw: readonly string[]): HeaderPairs {
  const pairs: HeaderPairs = [];
  for (let i = 0; i + 1 < raw.length; i += 2) pairs.push([raw[i], raw[i + 1]]);
  return pairs;
}

function failed(stage: FailureStage, why: string): UpstreamFailure {
  return { kind: "failed", stage, why };
}

/**
 * The body of an answer, in pieces. Pauses the socket while a piece is unread, so that a slow
 * reader slows down the sender.
 */
class BodyQueue {
  readonly #message: IncomingMessage;
  readonly #clock: Clock;
  readonly #pieces: Uint8Array<ArrayBuffer>[] = [];
  readonly #idleMs: number;
  /** Timeout of the next read, in ms. */
  #waitMs: number;
  #end: UpstreamPiece | null = null;
  #waiting: ((piece: UpstreamPiece) => void) | null = null;

  constructor(message: IncomingMessage, clock: Clock, { firstByteMs, idleMs }: UpstreamWaits) {
    [this.#message, this.#clock] = [message, clock];
    [this.#waitMs, this.#idleMs] = [firstByteMs, idleMs];
    message.on("data", (bytes: Buffer<ArrayBuffer>) => this.#take(bytes));
    message.on("end", () => this.#finish({ kind: "end" }));
    message.on("error", (fault) => this.fail(stageOfError(fault), fault.message));
    message.on("close", () => {
      if (!message.complete) this.fail("sent", "the connection closed in the middle of an answer");
    });
  }

  read(): Promise<UpstreamPiece> {
    const next = this.#pieces.shift();
    if (next !== undefined) return Promise.resolve({ kind: "bytes", bytes: next });
    if (this.#end !== null) return Promise.resolve(this.#end);
    const ms = this.#waitMs;
    return new Promise((resolve) => {
      const timer = this.#clock.after(ms, () => {
        this.fail("late", `no data for ${ms} ms`);
        this.#message.destroy();
      });
      this.#waiting = (piece) => {
        timer[Symbol.dispose]();
        resolve(piece);
      };
      this.#message.resume();
    });
  }

  /** Ends the body with a failure. The reader first receives the pieces that arrived before. */
  fail(stage: FailureStage, why: string): void {
    this.#finish({ kind: "failed", stage, why });
  }

  #take(bytes: Uint8Array<ArrayBuffer>): void {
    this.#waitMs = this.#idleMs;
    const waiting = this.#waiting;
    this.#waiting = null;
    if (waiting === null) {
      this.#pieces.push(bytes);
      this.#message.pause();
    } else waiting({ kind: "bytes", bytes });
  }

  #finish(end: UpstreamPiece): void {
    this.#end ??= end;
    const waiting = this.#waiting;
    this.#waiting = null;
    waiting?.(this.#end);
  }
}

/**
 * Error codes of a broken connection. After the request was sent, any other error is a parser
 * error.
 */
const BROKEN: ReadonlySet<string> = new Set([
  "ECONNRESET",
  "ECONNABORTED",
  "ECONNREFUSED",
  "EPIPE",
  "ETIMEDOUT",
  "ENOTCONN",
  "ConnectionClosed",
]);

/** Returns the failure stage of an error that occurred after the whole request was sent. */
function stageOfError({ code }: NodeJS.ErrnoException): "sent" | "garbled" {
  return code === undefined || BROKEN.has(code) ? "sent" : "garbled";
}

/**
 * Reads a whole body as text. Returns null and closes the connection if the read fails or the body
 * is longer than `bytesMax`.
 */
export async function readAll(answer: UpstreamAnswer, bytesMax: number): Promise<string | null> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for (;;) {
    const piece = await answer.read();
    if (piece.kind === "failed") return null;
    if (piece.kind === "end") return Buffer.concat(parts).toString("utf8");
    length += piece.bytes.length;
    if (length > bytesMax) {
      answer.close();
      return null;
    }
    parts.push(piece.bytes);
  }
}

/**
 * The held-back start of an answer that is not a stream: the whole answer, or the part up to the
 * limit.
 */
export interface HeldAnswer {
  readonly pieces: readonly Uint8Array<ArrayBuffer>[];
  readonly isWhole: boolean;
}

/**
 * Reads an answer to its end, or until more than `bytesMax` bytes arrived. Thus a broken answer is
 * detected before any of it is forwarded.
 */
export async function holdAnswer(
  answer: UpstreamAnswer,
  first: UpstreamPiece,
  bytesMax: number,
): Promise<HeldAnswer | UpstreamFailure> {
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  let length = 0;
  for (let piece = first; piece.kind !== "end"; piece = await answer.read()) {
    if (piece.kind === "failed") return piece;
    pieces.push(piece.bytes);
    length += piece.bytes.length;
    if (length > bytesMax) return { pieces, isWhole: false };
  }
  return { pieces, isWhole: true };
}

/** Returns the URL of a path at a worker. The worker's `url` may end with `/v1`. */
export function addressAt(url: string, path: string): string {
  return `${url.replace(/\/+$/, "").replace(/\/v1$/, "")}${path}`;
}
