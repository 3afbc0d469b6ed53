import {
  type ClientRequest,
  Agent as HttpAgent,
  type IncomingMessage,
  request as requestHttp,
} from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { type Clock, messageOf } from "../../../core/index.ts";
import { isShortOfDescriptors } from "../../../observability/index.ts";
import type { HeaderPairs } from "../headers.ts";
import { BodyQueue } from "./body-queue.ts";
import { stageOfError } from "./error-stage.ts";
import type {
  FailureStage,
  Upstream,
  UpstreamAnswer,
  UpstreamFailure,
  UpstreamOrder,
} from "./upstream.ts";

/** Connections to one worker that wait for their next request. */
const IDLE_SOCKETS_MAX = 64;
/** A connection that was closed while it was idle breaks within this time of its next use. */
const STALE_MS = 1_000;

interface Agents {
  readonly http: HttpAgent;
  readonly https: HttpsAgent;
}

/**
 * Workers over HTTP/1.1. Not by `fetch`: the runtime sends at most 256 requests of that kind at
 * once, and a stream of tokens takes minutes.
 */
export function createHttpUpstream(clock: Clock, onShort: () => void = () => {}): Upstream {
  const options = {
    keepAlive: true,
    maxSockets: Number.POSITIVE_INFINITY,
    maxFreeSockets: IDLE_SOCKETS_MAX,
  };
  const agents = { http: new HttpAgent(options), https: new HttpsAgent(options) };
  return {
    async open(order, signal) {
      const outcome = await open(order, signal);
      // Without a free descriptor the runtime's client says ECONNREFUSED: no worker refused it.
      const isConnect = outcome.kind === "failed" && outcome.stage === "connect";
      if (!isConnect || !isShortOfDescriptors()) return outcome;
      onShort();
      return failed("unsendable", `file descriptors run out: ${outcome.why}`);
    },
    [Symbol.dispose]() {
      agents.http.destroy();
      agents.https.destroy();
    },
  };

  async function open(order: UpstreamOrder, signal: AbortSignal) {
    const startMs = clock.monotonicMs();
    const first = new Exchange(order, clock, agents);
    const outcome = await first.run(signal);
    if (outcome.kind !== "failed" || outcome.stage !== "sent" || !first.isReused) return outcome;
    // A worker may close an idle connection just when it is used again: then it ends at once.
    if (clock.monotonicMs() - startMs > STALE_MS) return outcome;
    const second = await new Exchange(order, clock, null).run(signal);
    // It is gone, and may well have had the request before.
    const isGone = second.kind === "failed" && second.stage === "connect";
    return isGone ? ({ ...second, stage: "sent" } as const) : second;
  }
}

/** One request and its answer. Without agents it has a connection of its own. */
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
    if (signal.aborted) return Promise.resolve(failed("closed", "the client left"));
    const onAbort = () => this.close("the client left");
    signal.addEventListener("abort", onAbort, { once: true });
    return new Promise((resolve) => {
      this.#resolve = resolve;
      try {
        this.#outgoing = this.#send(() => signal.removeEventListener("abort", onAbort));
      } catch (thrown) {
        signal.removeEventListener("abort", onAbort);
        // Nothing was connected yet: the request or the worker's URL is at fault, not the worker.
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
    const { connectMs, firstByteMs, body } = this.#order;
    const outgoing = start(this.#order, this.#agents);
    this.#wait(connectMs, `no connection within ${connectMs} ms`);
    outgoing.on("error", (error) => {
      const stage = this.#stage === "sent" ? stageOfError(error) : this.#stage;
      this.#settle(failed(stage, error.message));
    });
    outgoing.on("close", () => {
      this.#settle(failed(this.#stage, "the connection ended before an answer"));
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
    const body = new BodyQueue(message, this.#clock, this.#order);
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
  for (let i = 0; i + 1 < raw.length; i += 2) pairs.push([raw[i]!, raw[i + 1]!]);
  return pairs;
}

function failed(stage: FailureStage, why: string): UpstreamFailure {
  return { kind: "failed", stage, why };
}
