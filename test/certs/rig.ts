import { type Clock, systemClock } from "../../src/core/index.ts";
import {
  type ChangeableTrust,
  type ConnectionFault,
  type Credentials,
  createTrust,
  type PeerConnection,
  type Trust,
} from "../../src/peers/index.ts";
import {
  Host,
  LIMITS,
  regionOf,
  type TransportMaker,
  tryDial,
} from "../peers/transports/contract-kit.ts";
import { makeCluster, type TestCluster, waitFor } from "../support/index.ts";

/** Result of an attempt. */
export interface Attempt {
  /** A request was received, answered, or sent to the stranger. */
  readonly accepted: boolean;
  /** The reason in the good host's log, or the dial's fault. */
  readonly reason: string;
}

/** `caller`: the stranger dials the good host; `host`: the good host dials the stranger. */
export const DIRECTIONS = ["caller", "host"] as const;
export type Direction = (typeof DIRECTIONS)[number];

export const GOOD = "good";
export const BAD = "bad";

/** A good host of a cluster, and strangers that try to connect. */
export class Rig implements AsyncDisposable {
  readonly maker: TransportMaker;
  readonly cluster: TestCluster;
  readonly trust: ChangeableTrust;
  readonly good: Host;
  /** Offset of the good host's wall clock in milliseconds. */
  aheadMs = 0;
  /** All log lines and faults, to be searched for secrets. */
  readonly said: string[] = [];
  readonly #keys = new Set<string>();

  readonly #patienceMs: number;

  private constructor(maker: TransportMaker, patienceMs: number) {
    this.maker = maker;
    this.#patienceMs = patienceMs;
    this.cluster = makeCluster();
    const clock: Clock = { ...systemClock, wallMs: () => systemClock.wallMs() + this.aheadMs };
    this.trust = createTrust(this.cluster.host(GOOD), clock);
    this.good = new Host(maker, this.trust, regionOf(0), LIMITS);
    this.keep(this.trust.credentials.key);
    this.keep(this.cluster.authority.key);
  }

  /** `patienceMs`: maximum wait for a reason. */
  static async make(maker: TransportMaker, patienceMs: number): Promise<Rig> {
    const rig = new Rig(maker, patienceMs);
    await rig.good.listen();
    rig.good.server.put(1, 1_000);
    return rig;
  }

  /** This key must never appear in a log or fault. */
  keep(key: string): void {
    for (const line of key.split("\n")) {
      if (line.length > 20 && !line.startsWith("-----")) this.#keys.add(line);
    }
  }

  /** A host with these credentials that accepts every peer. */
  stranger(credentials: Credentials): Host {
    this.keep(credentials.key);
    const identity = { worker: credentials.worker, cluster: "", fingerprint: "", notAfterMs: 0 };
    const trust: Trust = {
      credentials,
      authorize: () => ({ ok: true, identity }),
      onChange: () => ({ [Symbol.dispose]: () => undefined }),
    };
    return new Host(this.maker, trust, regionOf(1), LIMITS);
  }

  /** Presents the credentials in one direction, and tries to get an answer or a request. */
  async try(direction: Direction, credentials: Credentials): Promise<Attempt> {
    let stranger: Host;
    try {
      stranger = this.stranger(credentials);
      await stranger.listen();
    } catch (thrown) {
      return this.#ended(false, `could not be shown: ${String(thrown)}`);
    }
    try {
      return await (direction === "caller" ? this.callBy(stranger) : this.callTo(stranger));
    } finally {
      await stranger[Symbol.asyncDispose]();
    }
  }

  /** A stranger dials the good host. */
  async callBy(stranger: Host): Promise<Attempt> {
    const mark = this.mark();
    const dialled = await tryDial(stranger, this.good.endpoint, GOOD);
    const gotAnswer = dialled.ok && (await this.#ask(dialled.connection));
    return this.attempt(mark, gotAnswer);
  }

  /** The good host dials a stranger. */
  async callTo(stranger: Host): Promise<Attempt> {
    const before = stranger.server.asked;
    const dialled = await tryDial(this.good, stranger.endpoint, BAD);
    if (dialled.ok) await dialled.connection[Symbol.asyncDispose]();
    const accepted = dialled.ok || stranger.server.asked > before;
    return this.#ended(accepted, dialled.ok ? "" : dialled.fault.why);
  }

  /** The current position in the good host's log. */
  mark(): { readonly lines: number; readonly asked: number } {
    return { lines: this.good.log.length, asked: this.good.server.asked };
  }

  /** The result of an attempt since the mark; waits for its reason. */
  async attempt(mark: ReturnType<Rig["mark"]>, gotAnswer: boolean): Promise<Attempt> {
    const { good } = this;
    const hasAsked = () => good.server.asked > mark.asked;
    const reason = () => {
      const lines = good.log.slice(mark.lines).filter(({ level }) => level === "warn");
      return lines.map(({ text, fields }) => String(fields.why ?? text)).at(-1) ?? "";
    };
    const isOver = () => hasAsked() || reason() !== "";
    await waitFor(isOver, this.#patienceMs, "the end", 0).catch(() => undefined);
    const isIdle = () => good.transport.inboundConnections === 0;
    await waitFor(isIdle, this.#patienceMs, "no link", 0).catch(() => undefined);
    const accepted = gotAnswer || hasAsked() || good.transport.inboundConnections > 0;
    return this.#ended(accepted, reason());
  }

  /** Secrets that appeared in a log or fault. */
  leaks(): string[] {
    const all = [...this.said, ...this.good.log.map((line) => JSON.stringify(line))].join("\n");
    const pem = /-----BEGIN|PRIVATE KEY/.test(all) ? ["PEM"] : [];
    return [...pem, ...[...this.#keys].filter((line) => all.includes(line))];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.good[Symbol.asyncDispose]();
  }

  async #ask(connection: PeerConnection): Promise<boolean> {
    try {
      const request = { op: "has", namespace: new Uint8Array(32), blocks: [] } as const;
      const called = await connection.call(request, { deadlineMs: 2_000 });
      const pulled = await pullNothing(connection);
      this.said.push(JSON.stringify([called, pulled.fault]));
      return called.ok || pulled.answers > 0;
    } finally {
      await connection[Symbol.asyncDispose]();
    }
  }

  #ended(accepted: boolean, reason: string): Attempt {
    this.said.push(reason);
    return { accepted, reason };
  }
}

/** Requests a block that does not exist; only a peer gets an answer. */
async function pullNothing(
  connection: PeerConnection,
): Promise<{ answers: number; fault: ConnectionFault | null }> {
  const block = { digest: new Uint8Array(32), layer: 0, bytesMax: 4096, generation: 0n };
  let answers = 0;
  const fault = await connection.pull({
    namespace: new Uint8Array(32),
    items: [{ ...block, offset: 0 }],
    deadlineMs: 2_000,
    signal: new AbortController().signal,
    onBytes: () => answers++,
    onItem: () => answers++,
  });
  return { answers, fault };
}
