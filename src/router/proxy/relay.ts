import { errorEvent, refuse, workerFailed } from "./answers.ts";
import type { Won } from "./dispatch.ts";
import type { ErrorShape } from "./endpoint.ts";
import type { RequestTracker } from "./exchange.ts";
import { type HeaderPairs, towardsClient } from "./headers.ts";
import type { RequestEnd } from "./observer.ts";
import type { UpstreamAnswer, UpstreamPiece } from "./upstream.ts";
import { EventCutter, HiddenUsage, OutputCount, type OutputWatch } from "./worker-output.ts";

export interface RelayOptions {
  readonly won: Won;
  readonly tracker: RequestTracker;
  /** Headers to add to the worker's headers. */
  readonly headers: HeaderPairs;
  /** API whose error format the client expects. */
  readonly shape: ErrorShape;
  readonly watch: OutputWatch | null;
  /** If true, removes the usage at the end of a stream, because the client did not request it. */
  readonly hidesUsage: boolean;
  /** Called once, when nothing more will be sent to the client. */
  readonly ended: (end: RelayEnd) => void;
}

export interface RelayEnd extends RequestEnd {
  /** Number of prompt tokens as the worker counted them. Null: the worker did not report it. */
  readonly promptTokens: number | null;
}

type Bytes = Uint8Array<ArrayBuffer>;

/** Forwards a worker's answer unchanged and reports its progress to the router. */
export class Relay {
  readonly #options: RelayOptions;
  readonly #count: OutputCount;
  readonly #cutter: EventCutter | null;
  readonly #hidden: HiddenUsage | null;
  #next: UpstreamPiece | null;
  #isOver = false;

  constructor(options: RelayOptions) {
    this.#options = options;
    this.#count = new OutputCount(options.shape);
    const { first, held } = options.won;
    this.#next = held === null ? first : null;
    this.#cutter = held === null ? new EventCutter() : null;
    this.#hidden = options.hidesUsage ? new HiddenUsage() : null;
  }

  /**
   * Returns the response for the client. Forwards a stream as it arrives. Any other answer is
   * complete, or was too long to hold back.
   */
  respond(): Response {
    const { won, tracker, headers: more } = this.#options;
    const headers = clientHeaders(won.answer.headers, more);
    if (headers === null) {
      won.answer.close();
      this.#end("worker");
      return this.#failed("its answer has a header that HTTP does not allow");
    }
    const answer = (body: ReadableStream<Bytes> | Bytes | null) => {
      return new Response(body, { status: won.answer.status, headers });
    };
    const { held } = won;
    if (held === null) return answer(this.#stream([]));
    tracker.prefilled();
    if (!held.isWhole) return answer(this.#stream(held.pieces));
    const whole = Buffer.concat(held.pieces);
    this.#count.addUsage(whole);
    this.#options.watch?.add(whole);
    this.#end("done");
    return answer(WITHOUT_BODY.has(won.answer.status) ? null : whole);
  }

  #failed(why: string): Response {
    const { won, shape } = this.#options;
    return refuse(workerFailed(`The worker ${won.decision.target.worker} failed: ${why}`), shape);
  }

  #stream(held: readonly Bytes[]): ReadableStream<Bytes> {
    const { answer } = this.#options.won;
    return new ReadableStream<Bytes>(
      {
        start(controller) {
          for (const bytes of held) controller.enqueue(bytes);
        },
        pull: (controller) => this.#pull(controller),
        cancel: () => {
          answer.close();
          this.#left();
        },
      },
      { highWaterMark: 0 },
    );
  }

  async #pull(controller: ReadableStreamDefaultController<Bytes>): Promise<void> {
    for (;;) {
      const piece = await this.#read();
      if (this.#isOver) return;
      if (piece.kind === "bytes") {
        const whole = this.#account(piece.bytes);
        if (whole === null) continue;
        controller.enqueue(whole);
        return;
      }
      if (piece.kind === "end") this.#finish(controller);
      else this.#break(controller, piece);
      return;
    }
  }

  #read(): Promise<UpstreamPiece> {
    const next = this.#next;
    this.#next = null;
    return next === null ? this.#options.won.answer.read() : Promise.resolve(next);
  }

  /**
   * Counts a piece of the answer. Returns the bytes that may be forwarded now, or null if there are
   * none.
   */
  #account(bytes: Bytes): Bytes | null {
    if (this.#cutter === null) return bytes;
    const { tracker, watch } = this.#options;
    const parts = this.#cutter.push(bytes);
    if (parts.length === 0) return null;
    const whole = parts.length === 1 ? parts[0] : Buffer.concat(parts);
    if (this.#count.addEvents(whole)) tracker.prefilled();
    watch?.add(whole);
    tracker.output(this.#count.tokens);
    return this.#hidden === null ? whole : this.#hidden.take(whole);
  }

  #finish(controller: ReadableStreamDefaultController<Bytes>): void {
    const rest = this.#cutter?.takeHeld() ?? [];
    if (rest.length > 0) controller.enqueue(Buffer.concat(rest));
    controller.close();
    this.#end("done");
  }

  /**
   * Ends an answer that the worker broke off. Clients of event streams receive an error event and
   * no `[DONE]`.
   */
  #break(
    controller: ReadableStreamDefaultController<Bytes>,
    { stage, why }: Extract<UpstreamPiece, { kind: "failed" }>,
  ): void {
    if (stage === "closed") this.#left();
    else this.#end("worker");
    const { worker } = this.#options.won.decision.target;
    const error = workerFailed(`The worker ${worker} failed in the middle of the answer: ${why}`);
    if (this.#cutter !== null) {
      controller.enqueue(errorEvent(error, this.#options.shape));
      controller.close();
    } else controller.error(new Error(error.message));
  }

  /**
   * Ends the answer after the client disconnected. Many clients disconnect after `[DONE]`, which
   * counts as done.
   */
  #left(): void {
    this.#end(this.#count.isDone ? "done" : "client");
  }

  #end(how: RequestEnd["how"]): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { tokens: outputTokens, promptTokens } = this.#count;
    this.#options.ended({ how, outputTokens, promptTokens });
  }
}

/**
 * Returns the headers for the client: the worker's and additional ones. Null if a header cannot be
 * sent.
 */
export function clientHeaders(raw: HeaderPairs, more: HeaderPairs): Headers | null {
  const headers = new Headers();
  try {
    for (const [name, value] of [...towardsClient(raw), ...more]) headers.append(name, value);
    return headers;
  } catch {
    return null;
  }
}

/** Returns true if an answer is an uncompressed event stream, so that the proxy can read it. */
export function isEventStream(headers: HeaderPairs): boolean {
  const find = (name: string) => headers.find(([one]) => one.toLowerCase() === name)?.[1];
  const isPlain = (find("content-encoding") ?? "identity") === "identity";
  return isPlain && (find("content-type") ?? "").startsWith("text/event-stream");
}

/** HTTP statuses whose answers must not have a body. */
const WITHOUT_BODY: ReadonlySet<number> = new Set([204, 205, 304]);

/** Forwards an answer as it arrives. For requests that add no load and are not counted. */
export function passOn(answer: UpstreamAnswer, headers: Headers): Response {
  const { status } = answer;
  if (WITHOUT_BODY.has(status)) {
    answer.close();
    return new Response(null, { status, headers });
  }
  const body = new ReadableStream<Bytes>(
    {
      async pull(controller) {
        const piece = await answer.read();
        if (piece.kind === "bytes") controller.enqueue(piece.bytes);
        else if (piece.kind === "end") controller.close();
        else controller.error(new Error(piece.why));
      },
      cancel: () => answer.close(),
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { status, headers });
}
