import type { Clock } from "../core/index.ts";
import type { Native } from "../native/index.ts";
import { descriptorUse } from "../observability/index.ts";
import { refuse } from "./problem.ts";

const LOOK_MS = 50;
/** Descriptors looked at in one turn. */
const SLICE = 4_096;
/** A connection that has sent nothing for so long is ended while there are too many. */
const SILENT_MS = 250;

export interface ConnectionCapOptions {
  readonly server: Pick<Bun.Server<undefined>, "closeIdleConnections" | "port">;
  readonly native: Pick<Native, "endSilent">;
  readonly clock: Clock;
  /** Connections of this server. */
  readonly max: number;
  /** Descriptors of this process; another source for tests. */
  readonly use?: typeof descriptorUse;
}

/**
 * Closes a server's idle connections while it has too many, or while the process runs short of
 * descriptors. The runtime accepts every connection, reports none that has sent no request, and
 * closes those by itself only after 10 s, so the kernel is asked: a connection without a byte is
 * ended first. Where that leaves too many, connections between two requests are closed, too.
 */
export class ConnectionCap implements Disposable {
  readonly #options: ConnectionCapOptions;
  readonly #timer: Disposable;
  /** Where the next look begins; 0 between two sweeps over all descriptors. */
  #at = 0;
  /** Connections seen in this sweep. */
  #seen = 0;

  constructor(options: ConnectionCapOptions) {
    this.#options = options;
    this.#timer = options.clock.every(LOOK_MS, () => this.#look());
  }

  #look(): void {
    const { server, native, max, use = descriptorUse } = this.#options;
    const now = use();
    if (now === null || server.port === undefined) return;
    // Cheap, and the usual case: all descriptors together are fewer.
    if (this.#at === 0 && now.open <= max && !now.isShort) return;
    this.#seen += native.endSilent(server.port, this.#at, SLICE, SILENT_MS);
    this.#at += SLICE;
    // The kernel gives out the lowest number that is free.
    if (this.#at < Math.min(now.limit, 2 * now.open)) return;
    if (this.#seen > max || now.isShort) server.closeIdleConnections();
    [this.#at, this.#seen] = [0, 0];
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }
}

/** The answer to a request of an address whose earlier ones wait for their turns. */
export function refuseWaiting(): Response {
  return refuse("CONNECTION_LIMIT", "too many requests of this address wait", {
    fix: "ask again later",
    headers: { connection: "close", "retry-after": "1" },
  });
}

/** The answer to a request where each of the connections allowed has one already. */
export function refuseConnection(max: number): Response {
  return refuse("CONNECTION_LIMIT", `${max} requests are under way on as many connections`, {
    fix: "ask again later, or raise connections_max of this server",
    headers: { connection: "close", "retry-after": "1" },
  });
}
