import { HearthError, messageOf, type Random, randomBelow } from "../core/index.ts";
import { BUS_LIMITS, type Bus, type BusBasics, INBOX_PREFIX } from "./bus.ts";
import type { Dial } from "./connection.ts";
import {
  type CredentialFiles,
  readCredentials,
  readTls,
  type TlsFiles,
} from "./nats-credentials.ts";
import { type Dialled, dialTcp, dialWs } from "./nats-dial.ts";
import { ReconnectingBus } from "./reconnecting-bus.ts";

/** Maximum servers taken from a cluster's report. Further ones are ignored. */
const OTHERS_MAX = 32;

export interface BusOptions extends BusBasics {
  /**
   * One or more URLs separated by commas, all of one kind: nats:// or tls:// (TCP), ws:// or wss://
   * (WebSocket). Credentials may precede the `@`; they are never printed.
   */
  readonly url: string;
  /** Name of this client in the broker's connection list. */
  readonly name: string;
  readonly credentials?: Partial<CredentialFiles>;
  readonly tls?: Partial<TlsFiles>;
}

/**
 * Creates a bus over a NATS broker. Returns immediately and connects in the background, retrying
 * until closed. Credential and TLS files are read again for each connection, so a renewed file
 * takes effect with the next one. Throws CONFIG_INVALID if `url` is invalid.
 */
export function openBus(options: BusOptions): Bus {
  const list = parseServers(options.url);
  const dialOne = list.carrier === "ws" ? dialWs : dialTcp;
  const credentialFiles = { ...NO_CREDENTIALS, ...options.credentials };
  const tlsFiles = { ...NO_TLS, ...options.tls };
  const timeoutMs = options.limits?.connectMs ?? BUS_LIMITS.connectMs;
  let others: readonly Server[] = [];
  const dial: Dial = async (signal) => {
    const credentials = await readCredentials(credentialFiles, list.login);
    const tls = await readTls(tlsFiles);
    const { name, clock, random, inboxPrefix = INBOX_PREFIX } = options;
    const servers = [...shuffled(list.servers, random), ...shuffled(others, random)];
    const faults: string[] = [];
    for (const server of servers) {
      if (signal.aborted) break;
      const common = { name, inboxPrefix, credentials, tls, timeoutMs, clock, signal };
      const complain = (why: string) => {
        options.log?.("warn", "NATS server reported an error", { server: server.url, why });
      };
      try {
        const dialled = await dialOne({ ...common, server, complain });
        others = othersOf(dialled, server, list.servers);
        return dialled.connection;
      } catch (thrown) {
        faults.push(messageOf(thrown));
      }
    }
    throw new HearthError("DEADLINE", faults.join("; "));
  };
  return new ReconnectingBus(dial, options, { isDurable: true });
}

const NO_CREDENTIALS: CredentialFiles = {
  tokenFile: null,
  userFile: null,
  credsFile: null,
  nkeyFile: null,
};
const NO_TLS: TlsFiles = { caFile: null, certFile: null, keyFile: null };

/**
 * Returns the servers of the cluster that the configuration does not name. They are tried after the
 * configured ones.
 */
function othersOf(dialled: Dialled, like: Server, named: readonly Server[]): Server[] {
  const known = new Set(named.map(({ url }) => url));
  return dialled.others
    .slice(0, OTHERS_MAX)
    .map((address) => serverLike(like, address))
    .filter((server) => server !== null && !known.has(server.url)) as Server[];
}

function shuffled<T>(list: readonly T[], random: Random): T[] {
  const result = [...list];
  for (let at = result.length - 1; at > 0; at--) {
    const other = randomBelow(random, at + 1);
    [result[at], result[other]] = [result[other], result[at]];
  }
  return result;
}

const SCHEMES = {
  "nats:": { carrier: "tcp", tls: false, port: 4222 },
  "tls:": { carrier: "tcp", tls: true, port: 4222 },
  "ws:": { carrier: "ws", tls: false, port: 80 },
  "wss:": { carrier: "ws", tls: true, port: 443 },
} as const;
type Scheme = keyof typeof SCHEMES;

const SERVERS_MAX = 32;

export interface Server {
  /** URL of the server without credentials, safe to print. */
  readonly url: string;
  readonly host: string;
  readonly port: number;
  readonly tls: boolean;
}

export interface ServerList {
  /** Transport, which is the same for all servers: TCP or WebSocket. */
  readonly carrier: "tcp" | "ws";
  readonly servers: readonly [Server, ...Server[]];
  /**
   * Credentials written before the `@` of a URL: user and password, or only a token. Null if there
   * are none.
   */
  readonly login: Login | null;
}

export type Login =
  | { readonly kind: "user"; readonly user: string; readonly password: string }
  | { readonly kind: "token"; readonly token: string };

/**
 * Parses URLs separated by commas, each with nats://, tls://, ws:// or wss://. Throws
 * CONFIG_INVALID with a message that never contains the text before an `@`.
 */
export function parseServers(text: string): ServerList {
  const urls = text.split(",").map((url) => url.trim());
  if (urls.length > SERVERS_MAX) throw refuse(`names more than ${SERVERS_MAX} servers`);
  const parsed = urls.map(parseOne);
  const [first] = parsed;
  if (parsed.some(({ carrier }) => carrier !== first!.carrier)) {
    throw refuse("mixes TCP (nats://, tls://) and WebSocket (ws://, wss://)");
  }
  const logins = parsed.flatMap(({ login }) => (login === null ? [] : [login]));
  const [login = null] = logins;
  if (logins.some((other) => JSON.stringify(other) !== JSON.stringify(login))) {
    throw refuse("contains different credentials for its servers");
  }
  const servers = parsed.map(({ server }) => server) as [Server, ...Server[]];
  return { carrier: first!.carrier, servers, login };
}

/**
 * Returns a server that the cluster reported as `host:port`, with the URL scheme of `like`. Null if
 * the address is invalid.
 */
export function serverLike(like: Server, address: string): Server | null {
  const scheme = /^[a-z]+:/.exec(like.url)![0];
  const url = `${scheme}//${address}`;
  try {
    return parseOne(url).server;
  } catch {
    return null;
  }
}

function parseOne(url: string) {
  const scheme = /^[a-z]+:(?=\/\/)/i.exec(url)?.[0].toLowerCase();
  if (scheme === undefined || !Object.hasOwn(SCHEMES, scheme)) {
    throw refuse("must begin with nats://, tls://, ws:// or wss://");
  }
  const known = SCHEMES[scheme as Scheme];
  // Parse as http: for an unknown scheme, `URL` neither parses the port nor lower-cases the host.
  const asHttp = `http${url.slice(scheme.length - 1)}`;
  if (!URL.canParse(asHttp)) throw refuse("is not a valid URL");
  const { username, password, hostname, pathname, search, host } = new URL(asHttp);
  if (hostname === "") throw refuse("has no host");
  // Parse as https as well: for http, `URL` omits port 80.
  const written = /:([0-9]+)$/.exec(new URL(`https${asHttp.slice(4)}`).host)?.[1];
  const port = Number(written ?? (/:443(?:[/?#]|$)/.test(url) ? 443 : known.port));
  const path = known.carrier === "ws" ? `${pathname === "/" ? "" : pathname}${search}` : "";
  const bare = host.replace(/:[0-9]+$/, "");
  const server: Server = {
    url: `${scheme}//${bare}:${port}${path}`,
    host: hostname.replace(/^\[|\]$/g, ""),
    port,
    tls: known.tls,
  };
  return { carrier: known.carrier, server, login: loginOf(username, password) };
}

function loginOf(username: string, password: string): Login | null {
  if (username === "" && password === "") return null;
  const user = decode(username);
  if (password === "") return { kind: "token", token: user };
  return { kind: "user", user, password: decode(password) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function refuse(what: string): HearthError {
  const fix = "write URLs as in nats://host:4222, separated by commas";
  return new HearthError("CONFIG_INVALID", `the NATS address ${what}`, { fix });
}
