import type { Credentials } from "../../../peers/index.ts";

/**
 * What moves the blocks. `tcp` and `bare-quic`: a program that does nothing else; `stream-plain`:
 * without seals, as on a network that is declared trusted.
 */
export const CARRIERS = ["tcp", "stream", "stream-plain", "rdma", "quic", "bare-quic"] as const;
export type Carrier = (typeof CARRIERS)[number];

/** The first line that a process of the benchmark reads; keys are nowhere else. */
export interface Setup {
  readonly carrier: Carrier;
  readonly role: "holder" | "asker";
  readonly credentials: Credentials;
  readonly regionBytes: number;
  readonly lanes: number;
  /** Path of the verbs' library; null: as the dynamic linker finds it. */
  readonly verbs: string | null;
}

/** Blocks to pull: so many of them asked for and not there yet. */
export interface PullOrder {
  readonly do: "pull";
  readonly blockBytes: number;
  readonly inFlight: number;
  readonly blocks: number;
  /** Of the plain program. */
  readonly connections: number;
}

/** What a process is told, a JSON document a line on its standard input; its end stops it. */
export type Order =
  /** To the holder: it has blocks of this length from now on. */
  | { readonly do: "prepare"; readonly blockBytes: number; readonly connections: number }
  | { readonly do: "dial"; readonly port: number }
  | PullOrder
  | { readonly do: "tell" };

/** What it says, likewise on standard output. */
export type News =
  | { readonly did: "start"; readonly port: number }
  | { readonly did: "prepare" | "dial" }
  | ({ readonly did: "pull" } & Pulled)
  /** Of the process since its start. */
  | { readonly did: "tell"; readonly cpuSeconds: number; readonly rssMb: number };

export interface Pulled {
  readonly seconds: number;
  /** Of each block, from the request to its last byte; none of the plain program. */
  readonly ms: readonly number[];
  /** Blocks that did not come, or not as they were. */
  readonly wrong: number;
}

/** One end of a carrier, in a process of its own. */
export interface BenchSide extends AsyncDisposable {
  /** The holder's port; 0 of an asker. */
  readonly port: number;
  /** `ready` is called when blocks may be pulled; what it does may block the process. */
  prepare(blockBytes: number, connections: number, ready: () => Promise<void>): Promise<void>;
  dial(port: number): Promise<void>;
  pull(order: PullOrder): Promise<Pulled>;
}
