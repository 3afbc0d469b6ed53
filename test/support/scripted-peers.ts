import type { Clock, WorkerId } from "../../src/core/index.ts";
import type {
  Called,
  ConnectionFault,
  Dialled,
  DialTarget,
  ItemResult,
  Landed,
  OutgoingPull,
  PeerAnswer,
  PeerConnection,
  PeerHello,
  PeerIdentity,
  PeerRequest,
  Transport,
  TransportName,
} from "../../src/peers/index.ts";
import { checksumOf, type ScriptedBlocks } from "./scripted-blocks.ts";

/** How a scripted host answers one block of a pull. */
export type Answer =
  | "came"
  | "absent"
  | "hang"
  | "break"
  | "corrupt"
  | "otherDigest"
  | "otherGeneration"
  | { readonly busyMs: number }
  | { readonly tooLong: number }
  | { readonly refused: string };

export interface Behaviour {
  readonly answer: Answer;
  readonly afterMs: number;
  /** Bytes that come before, one call each millisecond; nothing else comes with them. */
  readonly trickle?: number;
}

/** Another host as a test writes it. */
export class ScriptedHost {
  readonly worker: WorkerId;
  incarnation = 1n;
  bytes = 1_000;
  generation = 7n;
  /** By transport: null: it answers there. */
  readonly unreachable = new Set<TransportName>();
  readonly dialHangs = new Set<TransportName>();
  hasHangs = false;
  holds: (digest: Uint8Array) => boolean = () => true;
  behave: (digest: Uint8Array, transport: TransportName) => Behaviour = () => ({
    answer: "came",
    afterMs: 1,
  });
  readonly links = new Set<ScriptedConnection>();
  dials = 0;
  pulls = 0;
  items = 0;
  stopped = 0;
  hasCalls = 0;
  readonly itemsAsked: number[] = [];
  /** How long its pulls may take, in milliseconds. */
  readonly deadlines: number[] = [];
  /** Bytes that it was asked for and has not answered, and the most at any time. */
  inFlight = 0;
  inFlightMax = 0;

  constructor(worker: string) {
    this.worker = worker as WorkerId;
  }

  breakLinks(why = "the host was killed"): void {
    for (const link of [...this.links]) link.break({ kind: "broken", why });
  }

  hello(): PeerHello {
    const hardware = { hasRdmaNic: false, rdmaDevices: [], cores: 1, hasAes: true };
    return { worker: this.worker, incarnation: this.incarnation, hardware };
  }
}

export interface ScriptedNet {
  readonly clock: Clock;
  readonly hosts: ReadonlyMap<string, ScriptedHost>;
  readonly blocks: ScriptedBlocks;
  /** From the signal to the end of the pull: until then the transport may write. */
  readonly stopMs: number;
}

/** A transport whose other end does what a test says. */
export class ScriptedTransport implements Transport {
  readonly name: TransportName;
  readonly capabilities = { encrypted: true, direct: false, early: false, oneSided: false };
  unsupported: string | null = null;
  readonly inboundConnections = 0;
  readonly #net: ScriptedNet;

  constructor(name: TransportName, net: ScriptedNet) {
    this.name = name;
    this.#net = net;
  }

  async register(): Promise<void> {}

  listen(): never {
    throw new Error("this stand-in serves no peer");
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    const host = this.#net.hosts.get(target.worker)!;
    host.dials++;
    if (host.dialHangs.has(this.name)) {
      await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
      return { ok: false, fault: { kind: "aborted", why: "the signal" } };
    }
    await after(this.#net.clock, 1);
    if (host.unreachable.has(this.name))
      return { ok: false, fault: { kind: "unreachable", why: "connection refused" } };
    return { ok: true, connection: new ScriptedConnection(host, this.name, this.#net) };
  }

  async reload(): Promise<void> {}

  async [Symbol.asyncDispose](): Promise<void> {}
}

export class ScriptedConnection implements PeerConnection {
  readonly identity: PeerIdentity;
  readonly transport: TransportName;
  readonly resumed = false;
  readonly rttMs = 1;
  readonly ended: Promise<ConnectionFault>;
  fault: ConnectionFault | null = null;
  readonly #host: ScriptedHost;
  readonly #net: ScriptedNet;
  readonly #broken = new AbortController();
  readonly #end: (fault: ConnectionFault) => void;

  constructor(host: ScriptedHost, transport: TransportName, net: ScriptedNet) {
    const { worker } = host;
    this.identity = { worker, cluster: "test", fingerprint: "00", notAfterMs: 1_900_000_000_000 };
    this.transport = transport;
    this.#host = host;
    this.#net = net;
    const { promise, resolve } = Promise.withResolvers<ConnectionFault>();
    this.ended = promise;
    this.#end = resolve;
    host.links.add(this);
  }

  break(fault: ConnectionFault): void {
    if (this.fault !== null) return;
    this.fault = fault;
    this.#host.links.delete(this);
    this.#broken.abort();
    this.#end(fault);
  }

  async call(
    request: Exclude<PeerRequest, { op: "pull" }>,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called> {
    if (this.fault !== null) return { ok: false, fault: this.fault };
    const host = this.#host;
    if (request.op === "has") host.hasCalls++;
    const gone = [this.#broken.signal, ...(options.signal === undefined ? [] : [options.signal])];
    const ms = host.hasHangs ? options.deadlineMs : 1;
    await after(this.#net.clock, ms, AbortSignal.any(gone));
    if (this.fault !== null) return { ok: false, fault: this.fault };
    if (options.signal?.aborted) return { ok: false, fault: { kind: "aborted", why: "signal" } };
    if (host.hasHangs) return { ok: false, fault: { kind: "stalled", why: "no answer" } };
    return { ok: true, answer: this.#answerOf(request) };
  }

  #answerOf(request: Exclude<PeerRequest, { op: "pull" }>): PeerAnswer {
    const { bytes, generation, holds } = this.#host;
    if (request.op === "hello") return { op: "hello", hello: this.#host.hello() };
    if (request.op === "has") {
      const blocks = request.blocks.map(({ digest }) =>
        holds(digest)
          ? { tiers: 2, bytes, generation, checksum: checksumOf(digest) }
          : { tiers: 0, bytes: 0, generation: 0n, checksum: 0n },
      );
      return { op: "has", blocks };
    }
    if (request.op === "find") {
      const found = request.names.map((name) => {
        const digest = new Uint8Array(32).fill(name[0]!);
        const has = { tiers: 2, bytes, generation, checksum: checksumOf(digest) };
        const namespace = new Uint8Array(32).fill(1);
        return holds(digest) ? [{ digest, layer: 0, namespace, ...has }] : [];
      });
      return { op: "find", found };
    }
    return { op: "refused", why: "no summaries here" };
  }

  async pull(pull: OutgoingPull): Promise<ConnectionFault | null> {
    const host = this.#host;
    host.pulls++;
    host.itemsAsked.push(pull.items.length);
    host.deadlines.push(pull.deadlineMs);
    const places = pull.items.map(({ offset }) => this.#net.blocks.places.get(offset)!);
    for (const place of places) place.writers++;
    const asked = pull.items.reduce((sum, { bytesMax }) => sum + bytesMax, 0);
    host.inFlight += asked;
    host.inFlightMax = Math.max(host.inFlightMax, host.inFlight);
    const done = new Set<number>();
    const fault = await this.#serve(pull, (index) => {
      host.inFlight -= pull.items[index]!.bytesMax;
      done.add(index);
      places[index]!.writers--;
    });
    if (pull.signal.aborted) {
      host.stopped++;
      await after(this.#net.clock, this.#net.stopMs);
    }
    for (const [index, { bytesMax }] of pull.items.entries()) {
      if (done.has(index)) continue;
      places[index]!.writers--;
      host.inFlight -= bytesMax;
    }
    return fault;
  }

  async #serve(
    pull: OutgoingPull,
    ready: (index: number) => void,
  ): Promise<ConnectionFault | null> {
    const { clock } = this.#net;
    const gone = AbortSignal.any([pull.signal, this.#broken.signal]);
    for (const [index, item] of pull.items.entries()) {
      this.#host.items++;
      const { answer, afterMs, trickle = 0 } = this.#host.behave(item.digest, this.transport);
      for (let sent = 0; sent < trickle && !gone.aborted; sent++) {
        pull.onBytes(index, 1);
        await after(clock, 1, gone);
      }
      if (answer === "hang") await forever(gone);
      else await after(clock, afterMs, gone);
      if (pull.signal.aborted) return { kind: "aborted", why: "the signal" };
      if (answer === "break") this.break({ kind: "broken", why: "connection reset" });
      if (this.fault !== null) return this.fault;
      const result = this.#resultOf(answer, item, pull.namespace);
      if (result === null) continue;
      if (result.kind === "came") {
        pull.onBytes(index, result.header.bytes);
        ready(index);
      }
      pull.onItem(index, result);
    }
    return null;
  }

  #resultOf(answer: Answer, item: Landed, namespace: Uint8Array): ItemResult | null {
    if (answer === "hang" || answer === "break") return null;
    if (answer === "absent") return { kind: "absent" };
    if (typeof answer === "object") {
      if ("busyMs" in answer) return { kind: "busy", retryAfterMs: answer.busyMs };
      if ("tooLong" in answer) return { kind: "tooLong", bytes: answer.tooLong };
      return { kind: "refused", why: answer.refused };
    }
    const { bytes, generation } = this.#host;
    if (bytes > item.bytesMax) return { kind: "tooLong", bytes };
    const sum = checksumOf(item.digest);
    const digest = answer === "otherDigest" ? item.digest.map((byte) => byte ^ 1) : item.digest;
    const header = {
      ...{ digest, layer: item.layer, model: "", bytes, namespace, checksum: sum },
      ...{ generation: answer === "otherGeneration" ? generation - 1n : generation },
      ...{ mac: null, parent: null, transient: false, aliases: [] },
    };
    return { kind: "came", header, checksum: answer === "corrupt" ? sum ^ 2n : sum };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.break({ kind: "closed", why: "closed here" });
  }
}

function after(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const timer = clock.after(ms, () => {
      signal?.removeEventListener("abort", stop);
      resolve();
    });
    const stop = () => {
      timer[Symbol.dispose]();
      resolve();
    };
    signal?.addEventListener("abort", stop, { once: true });
  });
}

function forever(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
}
