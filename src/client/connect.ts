import { type Bus, type BusOptions, openBus } from "../bus/index.ts";
import { type Clock, HearthError, type Random, systemClock, systemRandom } from "../core/index.ts";
import { BusControlClient } from "./bus-client.ts";
import type { ControlClient } from "./control-client.ts";
import { HttpClient, type HttpControlClient } from "./http-client.ts";
import { HttpConnection, type TlsMaterial } from "./http-connection.ts";
import { type Encoding, wireOf } from "./wire.ts";

const NAME = "hearth-client";

/** NATS servers, and files with what they want to see; read anew with each connection. */
export type NatsAccess = Pick<BusOptions, "url" | "credentials" | "tls">;

interface ClientOptions {
  /** Who sends. Workers keep ids, order and pins apart by it. */
  readonly issuer?: string;
  /** How commands travel; JSON unless given. */
  readonly encoding?: Encoding;
  readonly clock?: Clock;
  readonly random?: Random;
}

export interface ConnectControlOptions extends ClientOptions {
  /** Stays the caller's: it is not closed with the client. */
  readonly bus?: Bus;
  /** Instead of `bus`: the client opens one, and closes it. */
  readonly nats?: NatsAccess;
}

/**
 * A client that sends commands over a bus. Returns at once; whoever sends waits for the connection.
 * Throws USAGE without `bus` or `nats`, CONFIG_INVALID for a URL that is none.
 */
export function connectControl(options: ConnectControlOptions): ControlClient {
  const { nats, issuer = null, encoding = "json" } = options;
  const { clock = systemClock, random = systemRandom } = options;
  const bus = options.bus ?? (nats === undefined ? null : openOwn(nats, clock, random));
  if (bus === null) throw new HearthError("USAGE", "a control client needs a bus, or a NATS URL");
  const ownsBus = options.bus === undefined;
  return new BusControlClient({ bus, ownsBus, clock, random, issuer, wire: wireOf(encoding) });
}

function openOwn(nats: NatsAccess, clock: Clock, random: Random): Bus {
  return openBus({ ...nats, name: NAME, clock, random });
}

export interface ConnectHttpOptions extends ClientOptions {
  /** `http://127.0.0.1:7171`, or `https://`. */
  readonly url: string;
  /** Bearer token. */
  readonly token?: string;
  readonly tls?: TlsMaterial;
}

/** A client that sends commands to one agent over HTTP. Throws USAGE where `url` is no address. */
export function connectHttp(options: ConnectHttpOptions): HttpControlClient {
  const { url, token = null, tls = null, issuer = null, encoding = "json" } = options;
  const { clock = systemClock, random = systemRandom } = options;
  const connection = new HttpConnection(url, clock, token, tls);
  return new HttpClient({ connection, clock, random, issuer, wire: wireOf(encoding) });
}
