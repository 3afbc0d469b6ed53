import type { Clock } from "../../core/index.ts";
import type { Region } from "../../native/index.ts";
import type { PeerRequest } from "../messages.ts";
import type {
  Called,
  ConnectionFault,
  ConnectionFaultKind,
  Dialled,
  DialTarget,
  Endpoint,
  ItemResult,
  OutgoingPull,
  PeerConnection,
  PeerServer,
  Served,
  Transport,
  TransportName,
} from "../transport.ts";
import type { PeerIdentity } from "../trust.ts";

export type TransportOutcome = "ok" | ConnectionFaultKind;
type CallRequest = Exclude<PeerRequest, { op: "pull" }>;
type Pull = Extract<PeerRequest, { op: "pull" }>;

/** Receives the duration of each operation in seconds, as metrics need it. */
export interface TransportObserver {
  dialled(transport: TransportName, outcome: TransportOutcome, seconds: number): void;
  called(
    transport: TransportName,
    op: CallRequest["op"],
    outcome: TransportOutcome,
    seconds: number,
  ): void;
  pulled(transport: TransportName, outcome: TransportOutcome, seconds: number): void;
  /** An item of a pull was answered with `bytes` of payload, `seconds` after the pull began. */
  answered(
    transport: TransportName,
    outcome: ItemResult["kind"],
    bytes: number,
    seconds: number,
  ): void;
  /** A slot reference was held for a peer for `seconds`. */
  lent(transport: TransportName, bytes: number, seconds: number): void;
}

/** Wraps a transport and reports its operations to `observer`. */
export function measured(
  transport: Transport,
  clock: Clock,
  observer: TransportObserver,
): Transport {
  return new MeasuredTransport(transport, clock, observer);
}

function outcomeOf(fault: ConnectionFault | null): TransportOutcome {
  return fault?.kind ?? "ok";
}

class MeasuredTransport implements Transport {
  readonly name;
  readonly capabilities;
  readonly #inner: Transport;
  readonly #clock: Clock;
  readonly #observer: TransportObserver;

  constructor(inner: Transport, clock: Clock, observer: TransportObserver) {
    this.#inner = inner;
    this.#clock = clock;
    this.#observer = observer;
    this.name = inner.name;
    this.capabilities = inner.capabilities;
  }

  get unsupported(): string | null {
    return this.#inner.unsupported;
  }

  get inboundConnections(): number {
    return this.#inner.inboundConnections;
  }

  register(region: Region): Promise<void> {
    return this.#inner.register(region);
  }

  listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint> {
    const [clock, observer] = [this.#clock, this.#observer];
    return this.#inner.listen(endpoint, new MeasuredServer(server, this.name, clock, observer));
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    const startMs = this.#clock.monotonicMs();
    const dialled = await this.#inner.dial(target, signal);
    const seconds = (this.#clock.monotonicMs() - startMs) / 1_000;
    this.#observer.dialled(this.name, dialled.ok ? "ok" : dialled.fault.kind, seconds);
    if (!dialled.ok) return dialled;
    return {
      ok: true,
      connection: new MeasuredConnection(dialled.connection, this.#clock, this.#observer),
    };
  }

  reload(): Promise<void> {
    return this.#inner.reload();
  }

  [Symbol.asyncDispose](): PromiseLike<void> {
    return this.#inner[Symbol.asyncDispose]();
  }
}

class MeasuredConnection implements PeerConnection {
  readonly transport;
  readonly ended;
  readonly #inner: PeerConnection;
  readonly #clock: Clock;
  readonly #observer: TransportObserver;

  constructor(inner: PeerConnection, clock: Clock, observer: TransportObserver) {
    this.#inner = inner;
    this.#clock = clock;
    this.#observer = observer;
    this.transport = inner.transport;
    this.ended = inner.ended;
  }

  get identity(): PeerIdentity {
    return this.#inner.identity;
  }

  get resumed(): boolean {
    return this.#inner.resumed;
  }

  get rttMs(): number | null {
    return this.#inner.rttMs;
  }

  get fault(): ConnectionFault | null {
    return this.#inner.fault;
  }

  async call(
    request: CallRequest,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called> {
    const since = this.#stopwatch();
    const called = await this.#inner.call(request, options);
    const outcome = outcomeOf(called.ok ? null : called.fault);
    this.#observer.called(this.transport, request.op, outcome, since());
    return called;
  }

  async pull(pull: OutgoingPull): Promise<ConnectionFault | null> {
    const since = this.#stopwatch();
    const fault = await this.#inner.pull({
      namespace: pull.namespace,
      items: pull.items,
      deadlineMs: pull.deadlineMs,
      signal: pull.signal,
      onBytes: (index, bytes) => pull.onBytes(index, bytes),
      onItem: (index, result) => {
        const bytes = result.kind === "came" ? result.header.bytes : 0;
        this.#observer.answered(this.transport, result.kind, bytes, since());
        pull.onItem(index, result);
      },
    });
    this.#observer.pulled(this.transport, outcomeOf(fault), since());
    return fault;
  }

  /** Seconds since the call. */
  #stopwatch(): () => number {
    const startMs = this.#clock.monotonicMs();
    return () => (this.#clock.monotonicMs() - startMs) / 1_000;
  }

  [Symbol.asyncDispose](): PromiseLike<void> {
    return this.#inner[Symbol.asyncDispose]();
  }
}

class MeasuredServer implements PeerServer {
  readonly #inner: PeerServer;
  readonly #transport: TransportName;
  readonly #clock: Clock;
  readonly #observer: TransportObserver;

  constructor(
    inner: PeerServer,
    transport: TransportName,
    clock: Clock,
    observer: TransportObserver,
  ) {
    this.#inner = inner;
    this.#transport = transport;
    this.#clock = clock;
    this.#observer = observer;
  }

  call(peer: PeerIdentity, request: CallRequest, signal: AbortSignal) {
    return this.#inner.call(peer, request, signal);
  }

  /**
   * Not a generator: its `return` would wait for a running `next`, but the inner iterator's does
   * not.
   */
  serve(peer: PeerIdentity, pull: Pull, signal: AbortSignal): AsyncIterable<Served> {
    const inner = this.#inner.serve(peer, pull, signal);
    return {
      [Symbol.asyncIterator]: () => {
        const served = inner[Symbol.asyncIterator]();
        return {
          next: async () => {
            const next = await served.next();
            if (next.done === true || next.value.kind !== "block") return next;
            return { done: false, value: this.#watch(next.value) };
          },
          return: async () => (await served.return?.()) ?? { done: true, value: undefined },
        };
      },
    };
  }

  #watch<Block extends Extract<Served, { kind: "block" }>>(served: Block): Block {
    const startMs = this.#clock.monotonicMs();
    return {
      ...served,
      release: () => {
        const seconds = (this.#clock.monotonicMs() - startMs) / 1_000;
        this.#observer.lent(this.#transport, served.header.bytes, seconds);
        served.release();
      },
    };
  }
}
