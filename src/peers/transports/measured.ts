import type { Clock } from "../../core/index.ts";
import type { PeerRequest } from "../messages.ts";
import type {
  ConnectionFaultKind,
  ItemResult,
  PeerConnection,
  PeerServer,
  Served,
  Transport,
  TransportName,
} from "../transport.ts";

export type TransportOutcome = "ok" | ConnectionFaultKind;

/** Receives measurements of a transport. Durations are in seconds, as metrics need them. */
export interface TransportObserver {
  dialled(transport: TransportName, outcome: TransportOutcome, seconds: number): void;
  called(
    transport: TransportName,
    op: Exclude<PeerRequest["op"], "pull">,
    outcome: TransportOutcome,
    seconds: number,
  ): void;
  pulled(transport: TransportName, outcome: TransportOutcome, seconds: number): void;
  /**
   * Called when a requested block was received or refused: `bytes` bytes of payload, `seconds`
   * after the pull began.
   */
  answered(
    transport: TransportName,
    outcome: ItemResult["kind"],
    bytes: number,
    seconds: number,
  ): void;
  /**
   * Called when a block that was sent to a peer is released. `seconds`: how long its slot was
   * referenced.
   */
  lent(transport: TransportName, bytes: number, seconds: number): void;
}

/** Returns a transport that behaves like the given one and reports its operations to `observer`. */
export function measured(
  transport: Transport,
  clock: Clock,
  observer: TransportObserver,
): Transport {
  const { name, capabilities } = transport;
  const stopwatch = () => stopwatchOf(clock);
  return {
    name,
    capabilities,
    get unsupported() {
      return transport.unsupported;
    },
    get inboundConnections() {
      return transport.inboundConnections;
    },
    register: (region) => transport.register(region),
    listen: (endpoint, server) =>
      transport.listen(endpoint, measuredServer(server, name, stopwatch, observer)),
    async dial(target, signal) {
      const seconds = stopwatch();
      const dialled = await transport.dial(target, signal);
      observer.dialled(name, dialled.ok ? "ok" : dialled.fault.kind, seconds());
      if (!dialled.ok) return dialled;
      return { ok: true, connection: measuredConnection(dialled.connection, stopwatch, observer) };
    },
    reload: () => transport.reload(),
    [Symbol.asyncDispose]: () => transport[Symbol.asyncDispose](),
  };
}

/** Returns the seconds since the stopwatch was created. */
type Stopwatch = () => number;

function stopwatchOf(clock: Clock): Stopwatch {
  const startMs = clock.monotonicMs();
  return () => (clock.monotonicMs() - startMs) / 1_000;
}

function measuredConnection(
  connection: PeerConnection,
  stopwatch: () => Stopwatch,
  observer: TransportObserver,
): PeerConnection {
  const { transport, ended } = connection;
  return {
    transport,
    ended,
    get identity() {
      return connection.identity;
    },
    get resumed() {
      return connection.resumed;
    },
    get rttMs() {
      return connection.rttMs;
    },
    get fault() {
      return connection.fault;
    },
    async call(request, options) {
      const seconds = stopwatch();
      const called = await connection.call(request, options);
      observer.called(transport, request.op, called.ok ? "ok" : called.fault.kind, seconds());
      return called;
    },
    async pull(pull) {
      const seconds = stopwatch();
      const fault = await connection.pull({
        namespace: pull.namespace,
        items: pull.items,
        deadlineMs: pull.deadlineMs,
        signal: pull.signal,
        onBytes: (index, bytes) => pull.onBytes(index, bytes),
        onItem: (index, result) => {
          const bytes = result.kind === "came" ? result.header.bytes : 0;
          observer.answered(transport, result.kind, bytes, seconds());
          pull.onItem(index, result);
        },
      });
      observer.pulled(transport, fault?.kind ?? "ok", seconds());
      return fault;
    },
    [Symbol.asyncDispose]: () => connection[Symbol.asyncDispose](),
  };
}

/**
 * Wraps a server to measure how long slots are referenced. `serve` is not an async generator,
 * because the generator's `return` would wait for a running `next`; the inner iterator's does not.
 */
function measuredServer(
  server: PeerServer,
  transport: TransportName,
  stopwatch: () => Stopwatch,
  observer: TransportObserver,
): PeerServer {
  const watch = (served: Served): Served => {
    if (served.kind !== "block") return served;
    const seconds = stopwatch();
    const release = () => {
      observer.lent(transport, served.header.bytes, seconds());
      served.release();
    };
    return { ...served, release };
  };
  return {
    call: (peer, request, signal) => server.call(peer, request, signal),
    serve: (peer, pull, signal) => ({
      [Symbol.asyncIterator]: () => {
        const served = server.serve(peer, pull, signal)[Symbol.asyncIterator]();
        return {
          async next() {
            const next = await served.next();
            return next.done === true ? next : { done: false, value: watch(next.value) };
          },
          return: async () => (await served.return?.()) ?? { done: true, value: undefined },
        };
      },
    }),
  };
}
