import type { Socket } from "bun";
import { type Clock, HearthError, yieldToLoop } from "../../core/index.ts";

/** Returns the `q` quantile of the samples (0 ≤ q ≤ 1); NaN if there are no samples. */
export function quantile(samples: readonly number[], q: number): number {
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? Number.NaN;
}

export function median(samples: readonly number[]): number {
  return quantile(samples, 0.5);
}

/** Rounds the value to `digits` decimal places. */
export function rounded(value: number, digits = 3): number {
  return Number(value.toFixed(digits));
}

interface Pulling {
  readonly blocks: number;
  /** Maximum number of blocks in flight at the same time. */
  readonly inFlight: number;
  /** Number of slots for blocks, used in turn. */
  readonly slots: number;
}

/**
 * Pulls `blocks` blocks in order, several at the same time. `pullOne` returns whether its block
 * arrived.
 */
export async function pullAll(
  { blocks, inFlight, slots }: Pulling,
  pullOne: (slot: number) => Promise<boolean>,
) {
  const ms: number[] = [];
  let next = 0;
  let wrong = 0;
  const start = Bun.nanoseconds();
  const one = async () => {
    while (next < blocks) {
      const began = Bun.nanoseconds();
      const isRight = await pullOne(next++ % slots);
      ms.push((Bun.nanoseconds() - began) / 1e6);
      if (!isRight) wrong++;
    }
  };
  await Promise.all(Array.from({ length: inFlight }, one));
  return { seconds: (Bun.nanoseconds() - start) / 1e9, ms, wrong };
}

/** Lets other work on the event loop run. Throws ABORTED when the signal has fired. */
export async function yieldOrAbort(signal: AbortSignal | undefined): Promise<void> {
  await yieldToLoop();
  if (signal?.aborted) throw new HearthError("ABORTED", "the benchmark was aborted");
}

export interface HttpLoadOptions {
  readonly clock: Clock;
  /** Base URL of the server, such as `http://127.0.0.1:7181`. */
  readonly url: string;
  readonly path: string;
  /** Request bodies, sent in turn. */
  readonly bodies: readonly string[];
  readonly connections: number;
  readonly ms: number;
  readonly signal?: AbortSignal;
}

const HEAD_END = "\r\n\r\n";

/**
 * Sends POST requests over connections that stay open, one at a time on each. The client uses
 * little processor time, so that the measurement shows the server. Throws ENGINE_REFUSED if a
 * response has a status other than 200, ENGINE_CLOSED if a connection breaks.
 */
export async function loadHttp(options: HttpLoadOptions) {
  const { clock, url, path, bodies, connections, ms } = options;
  const { hostname, port, host } = new URL(url);
  const requests = bodies.map((body) => {
    const length = Buffer.byteLength(body);
    const head = `POST ${path} HTTP/1.1\r\nHost: ${host}\r\nContent-Length: ${length}\r\n\r\n`;
    return Buffer.from(head + body);
  });
  const taken: number[] = [];
  const startMs = clock.monotonicMs();
  const endMs = startMs + ms;
  let next = 0;
  const isOver = () => clock.monotonicMs() >= endMs || options.signal?.aborted === true;
  const one = (at: number) =>
    converse({
      ...{ clock, hostname, port: Number(port), isOver },
      request: () => requests[(next++ + at) % requests.length],
      onAnswer: (tookMs) => void taken.push(tookMs),
    });
  await Promise.all(Array.from({ length: connections }, (_, at) => one(at)));
  const seconds = (clock.monotonicMs() - startMs) / 1_000;
  return {
    requests: taken.length,
    perSecond: Math.round(taken.length / seconds),
    p50Ms: quantile(taken, 0.5),
    p99Ms: quantile(taken, 0.99),
  };
}

interface Conversation {
  readonly clock: Clock;
  readonly hostname: string;
  readonly port: number;
  isOver(): boolean;
  request(): Buffer;
  onAnswer(tookMs: number): void;
}

function converse(talk: Conversation): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  let got = "";
  let rest: Buffer | null = null;
  let sentMs = 0;
  const write = (socket: Socket, bytes: Buffer) => {
    const written = socket.write(bytes);
    rest = written < bytes.length ? bytes.subarray(written) : null;
  };
  const send = (socket: Socket) => {
    if (talk.isOver()) {
      // Closing the socket emits its close event at once, so resolve before.
      resolve();
      socket.end();
      return;
    }
    sentMs = talk.clock.monotonicMs();
    write(socket, talk.request());
  };
  const broken = () => reject(new HearthError("ENGINE_CLOSED", "the connection is gone"));
  void Bun.connect({
    hostname: talk.hostname,
    port: talk.port,
    socket: {
      open: send,
      drain(socket) {
        if (rest !== null) write(socket, rest);
      },
      data(socket, chunk) {
        got += chunk.toString("latin1");
        if (!isWhole(got)) return;
        talk.onAnswer(talk.clock.monotonicMs() - sentMs);
        if (!got.startsWith("HTTP/1.1 200 ")) {
          reject(new HearthError("ENGINE_REFUSED", `the server answers ${got.slice(0, 300)}`));
          socket.end();
          return;
        }
        got = "";
        send(socket);
      },
      close: broken,
      error: broken,
    },
  }).catch(reject);
  return promise;
}

/** Returns whether the text is an HTTP response with its whole body. */
function isWhole(text: string): boolean {
  const end = text.indexOf(HEAD_END);
  if (end === -1) return false;
  const length = Number(/\r\ncontent-length: (\d+)/i.exec(text.slice(0, end))?.[1] ?? 0);
  return text.length >= end + HEAD_END.length + length;
}
