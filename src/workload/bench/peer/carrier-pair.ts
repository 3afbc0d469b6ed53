import { systemClock, type WorkerId } from "../../../core/index.ts";
import { type Credentials, issueHost, makeAuthority } from "../../../peers/index.ts";
import type { Carrier, Pulled } from "./orders.ts";
import { PeerProcess } from "./peer-process.ts";
import { HOLDER } from "./transport-side.ts";

const ASKER = "asker" as WorkerId;
const CLUSTER = "bench";
const HOUR_MS = 3_600_000;

/** What one measurement came to. */
export interface Measured extends Pulled {
  /** Of both processes. */
  readonly cpuSeconds: number;
  readonly bytes: number;
}

export interface Load {
  readonly blockBytes: number;
  readonly inFlight: number;
  readonly blocks: number;
  /** Of the plain program; others ignore it. */
  readonly connections: number;
}

export interface PairOptions {
  readonly regionBytes: number;
  readonly lanes: number;
  readonly verbs: string | null;
  readonly signal: AbortSignal;
}

/** Until then JavaScript is compiled: it runs all the time in an agent. */
const WARM_UP: Load = { blockBytes: 64 * 1024, inFlight: 8, blocks: 2_000, connections: 1 };

/** Certificates of a cluster that lives as long as the benchmark. */
export function benchCluster(): Readonly<Record<"holder" | "asker", Credentials>> {
  const nowMs = systemClock.wallMs();
  const validity = { notBeforeMs: nowMs - HOUR_MS, notAfterMs: nowMs + 24 * HOUR_MS };
  const authority = makeAuthority({ cluster: CLUSTER, validity });
  const host = (worker: WorkerId): Credentials => {
    const name = { cluster: CLUSTER, worker };
    const { certificate, key } = issueHost({ authority, name, key: null, validity });
    const { notAfterMs } = validity;
    const authorities = authority.certificate;
    return { ...name, certificates: certificate, key, authorities, notAfterMs };
  };
  return { holder: host(HOLDER), asker: host(ASKER) };
}

/** A holder and an asker of one carrier, in two processes that are connected. */
export class CarrierPair implements AsyncDisposable {
  readonly carrier: Carrier;
  readonly #holder: PeerProcess;
  readonly #asker: PeerProcess;

  private constructor(carrier: Carrier, holder: PeerProcess, asker: PeerProcess) {
    this.carrier = carrier;
    this.#holder = holder;
    this.#asker = asker;
  }

  static async start(
    carrier: Carrier,
    credentials: ReturnType<typeof benchCluster>,
    options: PairOptions,
  ): Promise<CarrierPair> {
    const { signal, ...own } = options;
    const start = (role: "holder" | "asker") =>
      PeerProcess.start({ carrier, role, credentials: credentials[role], ...own }, signal);
    const holder = await start("holder");
    const asker = await start("asker");
    await asker.tell({ do: "dial", port: holder.port });
    const pair = new CarrierPair(carrier, holder, asker);
    await pair.measure(WARM_UP);
    return pair;
  }

  async measure(load: Load): Promise<Measured> {
    const before = await this.tell();
    const { blockBytes, connections } = load;
    await this.#holder.tell({ do: "prepare", blockBytes, connections });
    const pulled = await this.#asker.tell({ do: "pull", ...load });
    const after = await this.tell();
    const { seconds, ms, wrong } = pulled;
    const cpuSeconds = after.cpuSeconds - before.cpuSeconds;
    return { seconds, ms, wrong, cpuSeconds, bytes: load.blocks * blockBytes };
  }

  /** Processor time of both so far, and what each has in memory. */
  async tell(): Promise<{ cpuSeconds: number; holderRssMb: number; askerRssMb: number }> {
    const holder = await this.#holder.tell({ do: "tell" });
    const asker = await this.#asker.tell({ do: "tell" });
    const cpuSeconds = holder.cpuSeconds + asker.cpuSeconds;
    return { cpuSeconds, holderRssMb: holder.rssMb, askerRssMb: asker.rssMb };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#asker[Symbol.asyncDispose]();
    await this.#holder[Symbol.asyncDispose]();
  }
}
