/**
 * A host as a separate process that its parent kills, or that kills itself. Reads its configuration
 * from HOST_SPEC, and prints a line of JSON when it listens.
 */
import { systemClock } from "../../src/core/index.ts";
import type {
  PeerIdentity,
  PeerRequest,
  PeerServer,
  Served,
  TransportName,
} from "../../src/peers/index.ts";
import { createTrust } from "../../src/peers/index.ts";
import { RealHost } from "../peers/hosts/real-host.ts";
import { LIMITS, MAKERS, putAll } from "./world.ts";

export interface HostSpec {
  readonly worker: string;
  readonly transport: TransportName;
  readonly credentials: Parameters<typeof createTrust>[0];
  readonly arenaBytes: number;
  /** Names of its blocks. */
  readonly names: readonly string[];
  /** Kills itself before block number `at` of a pull, or this long after it. */
  readonly killAt?: { readonly at: number; readonly afterMs: number | null };
  /** Pulls `wanted` from these hosts repeatedly. */
  readonly peers?: readonly Pick<RealHost, "worker" | "endpoints">[];
  readonly wanted?: readonly string[];
}

class MortalServer implements PeerServer {
  readonly #inner: PeerServer;
  readonly #killAt: NonNullable<HostSpec["killAt"]>;

  constructor(inner: PeerServer, killAt: NonNullable<HostSpec["killAt"]>) {
    this.#inner = inner;
    this.#killAt = killAt;
  }

  call(...args: Parameters<PeerServer["call"]>) {
    return this.#inner.call(...args);
  }

  async *serve(
    peer: PeerIdentity,
    pull: Extract<PeerRequest, { op: "pull" }>,
    signal: AbortSignal,
  ): AsyncGenerator<Served> {
    const { at, afterMs } = this.#killAt;
    const die = () => process.kill(process.pid, "SIGKILL");
    let given = 0;
    try {
      for await (const served of this.#inner.serve(peer, pull, signal)) {
        if (given++ === at) {
          if (afterMs === null) die();
          else systemClock.after(afterMs, die);
        }
        yield served;
      }
    } finally {
      if (given <= at) die();
    }
  }
}

const spec = JSON.parse(process.env.HOST_SPEC!) as HostSpec;
const { worker, transport, credentials, arenaBytes, names, killAt, peers, wanted } = spec;
const host = await new RealHost({
  ...{ worker, trust: createTrust(credentials, systemClock), transports: [transport], arenaBytes },
  limits: { ...LIMITS, transports: [transport] },
  makers: MAKERS,
  ...(killAt === undefined ? {} : { wrap: (inner) => new MortalServer(inner, killAt) }),
}).listen();
await putAll(host.engine(), names);
host.meet(peers ?? []);
console.log(JSON.stringify(host.endpoints));
const engine = host.engine();
while (wanted !== undefined) {
  const handles = await engine.fetch(wanted, { deadlineMs: 2_000 });
  engine.release(handles.filter(({ outcome }) => outcome === "ok"));
}
