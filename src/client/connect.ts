import type { Bus } from "../bus/index.ts";
import { type Clock, type Random, systemClock, systemRandom } from "../core/index.ts";
import { BusControlClient } from "./bus-client.ts";
import type { ControlClient } from "./control-client.ts";
import { HttpClient, type HttpControlClient } from "./http-client.ts";
import { HttpConnection, type TlsMaterial } from "./http-connection.ts";
import { jsonWire } from "./wire.ts";

export interface ConnectControlOptions {
  /** Stays the caller's: it is not closed with the client. */
  readonly bus: Bus;
  /** Who sends; workers keep order, ids and pins apart by it. */
  readonly issuer?: string;
  readonly clock?: Clock;
  readonly random?: Random;
}

/** A client that sends commands over a bus. */
export async function connectControl(options: ConnectControlOptions): Promise<ControlClient> {
  const { bus, issuer = null, clock = systemClock, random = systemRandom } = options;
  return new BusControlClient({ bus, ownsBus: false, clock, random, issuer, wire: jsonWire });
}

export interface ConnectHttpOptions {
  /** `http://127.0.0.1:7171`, or `https://`. */
  readonly url: string;
  /** Bearer token. */
  readonly token?: string;
  readonly tls?: TlsMaterial;
  readonly issuer?: string;
  readonly clock?: Clock;
  readonly random?: Random;
}

/** A client that sends commands to one agent over HTTP. Throws USAGE for an address that is none. */
export function connectHttp(options: ConnectHttpOptions): HttpControlClient {
  const { url, token = null, tls = null, issuer = null } = options;
  const { clock = systemClock, random = systemRandom } = options;
  const connection = new HttpConnection(url, clock, token, tls);
  return new HttpClient({ connection, clock, random, issuer, wire: jsonWire });
}
