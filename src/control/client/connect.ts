import { type Bus, type BusOptions, openBus } from "../../bus/index.ts";
import {
  type Clock,
  HearthError,
  type NkeyUser,
  type Random,
  systemClock,
  systemRandom,
  userOfSeed,
} from "../../core/index.ts";
import { BusControlClient } from "./bus-client.ts";
import type { ControlClient } from "./control-client.ts";
import { type Encoding, mustBeIssuer, wireOf } from "./control-client.ts";
import { HttpClient, type HttpControlClient, type TlsMaterial } from "./http-client.ts";

const NAME = "hearth-client";

/** NATS servers, and files with credentials, which are read again for each connection. */
export type NatsAccess = Pick<BusOptions, "url" | "credentials" | "tls" | "inboxPrefix">;

interface ClientOptions {
  /** Name of this sender. Workers keep ids, epochs and pins separate per issuer. */
  readonly issuer?: string;
  /** Encoding of commands. Default: JSON. */
  readonly encoding?: Encoding;
  /** Seed (SU...) of the nkey with which the issuer signs its commands. */
  readonly signingSeed?: string;
  readonly clock?: Clock;
  readonly random?: Random;
}

export interface ConnectControlOptions extends ClientOptions {
  /** Bus to use. The caller owns it; closing the client does not close it. */
  readonly bus?: Bus;
  /** Servers to connect to, instead of `bus`. The client opens a bus and closes it. */
  readonly nats?: NatsAccess;
  /** True to publish commands on the issuer's own subjects, `kv-control-{worker}.{issuer}`. */
  readonly ownSubject?: boolean;
}

/**
 * Creates a client that sends commands over a bus. Returns immediately; each command waits for the
 * connection. Throws USAGE if neither `bus` nor `nats` is given, if the seed is invalid, or if the
 * issuer's name cannot be proved on its own subject or by signature; throws CONFIG_INVALID if a URL
 * is invalid.
 */
export function connectControl(options: ConnectControlOptions): ControlClient {
  const { nats, issuer = null, encoding = "json", ownSubject = false } = options;
  const { clock = systemClock, random = systemRandom } = options;
  const bus = options.bus ?? (nats === undefined ? null : openOwn(nats, clock, random));
  if (bus === null) throw new HearthError("USAGE", "a control client needs a bus, or a NATS URL");
  const ownsBus = options.bus === undefined;
  const wire = wireOf(encoding, signingKey(options));
  const subjectIssuer = ownSubject ? mustBeIssuer(issuer) : null;
  return new BusControlClient({ bus, ownsBus, clock, random, issuer, wire, subjectIssuer });
}

function signingKey(options: ClientOptions): NkeyUser | null {
  const { signingSeed, issuer = null } = options;
  if (signingSeed === undefined) return null;
  mustBeIssuer(issuer);
  const key = userOfSeed(signingSeed);
  if (key === null) throw new HearthError("USAGE", "the signing key is not a user's seed (SU...)");
  return key;
}

function openOwn(nats: NatsAccess, clock: Clock, random: Random): Bus {
  return openBus({ ...nats, name: NAME, clock, random });
}

export interface ConnectHttpOptions extends ClientOptions {
  /** Address of the agent: `http://127.0.0.1:7171`, or one with `https://`. */
  readonly url: string;
  /** Bearer token to authenticate with. */
  readonly token?: string;
  readonly tls?: TlsMaterial;
  /** Path of the agent's Unix socket. If set, requests use it instead of the address in `url`. */
  readonly socket?: string;
}

/**
 * Creates a client that sends commands to one agent over HTTP. Throws USAGE if `url` is not valid.
 */
export function connectHttp(options: ConnectHttpOptions): HttpControlClient {
  const { url, token = null, tls = null, issuer = null, encoding = "json" } = options;
  const { socket = null } = options;
  const { clock = systemClock, random = systemRandom } = options;
  const wire = wireOf(encoding, signingKey(options));
  return new HttpClient({ url, token, tls, socket, clock, random, issuer, wire });
}
