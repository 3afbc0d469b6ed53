import { accessSync, constants } from "node:fs";
import {
  type ControlClient,
  connectControl,
  connectHttp,
  ENCODINGS,
  type Encoding,
  type FoundWorker,
  type HttpControlClient,
  type NatsAccess,
  type TlsMaterial,
} from "../../control/client/index.ts";
import {
  type Clock,
  choiceKind,
  durationKind,
  HearthError,
  type Kind,
  textKind,
} from "../../core/index.ts";
import {
  type FlagValues,
  fileKind,
  fileText,
  jsonFlag,
  nameKind,
  optional,
  toggle,
  urlKind,
  withDefault,
} from "../command.ts";
import type { Io } from "../terminal.ts";
import { plain } from "./documents.ts";

export type ConnectionFlags = Omit<
  FlagValues<typeof connectionFlags>,
  "worker" | "deadline" | "json"
>;

export interface SendFlags {
  readonly issuer?: string | null;
  readonly encoding?: Encoding;
  /** File with the private key (seed) that signs commands; null or absent for no signature. */
  readonly sign?: string | null;
  /** Whether to publish on the NATS subject of the issuer that signs. */
  readonly ownSubject?: boolean;
}

/**
 * Connects over HTTP, or over NATS if --nats is given. Throws USAGE if flags contradict each other.
 */
export async function openControl(
  flags: ConnectionFlags,
  clock: Clock,
  sending: SendFlags = {},
): Promise<ControlClient> {
  const { nats } = flags;
  const { sign = null } = sending;
  const signingSeed = sign === null ? null : await firstLine(sign);
  if (nats === null) {
    if (sending.ownSubject === true) throw new HearthError("USAGE", "--own-subject needs --nats");
    return openHttp(flags, clock, { ...sending, signingSeed });
  }
  if (flags.socket !== null) {
    throw new HearthError("USAGE", "--socket and --nats exclude each other");
  }
  if (flags.api !== null) throw new HearthError("USAGE", "--api and --nats exclude each other");
  if (flags.tokenFile !== null) {
    throw new HearthError("USAGE", "--token-file is for --api", {
      fix: "give --nats-token, --nats-user, --nats-creds or --nats-nkey",
    });
  }
  return openNats(flags, nats, clock, { ...sending, signingSeed });
}

/** Options of a signed command. `sign` is the seed itself instead of its file. */
interface SignedSendOptions extends Omit<SendFlags, "sign"> {
  readonly signingSeed?: string | null;
}

type NatsFlags = Pick<
  ConnectionFlags,
  "ca" | "cert" | "key" | "natsCreds" | "natsNkey" | "natsToken" | "natsUser" | "natsInbox"
>;

/** Opens a NATS connection. Throws USAGE if the URL is invalid or contains credentials. */
export function openNats(
  flags: NatsFlags,
  url: string,
  clock: Clock,
  {
    issuer = null,
    encoding = "json",
    signingSeed = null,
    ownSubject = false,
  }: SignedSendOptions = {},
): ControlClient {
  const by = issuer === null ? {} : { issuer };
  const signed = signingSeed === null ? {} : { signingSeed };
  const nats = natsAccess(flags, url);
  try {
    return connectControl({ nats, clock, encoding, ownSubject, ...by, ...signed });
  } catch (thrown) {
    if (!(thrown instanceof HearthError) || thrown.code !== "CONFIG_INVALID") throw thrown;
    const { message, fix } = thrown;
    throw new HearthError("USAGE", message, fix === undefined ? {} : { fix });
  }
}

/**
 * Returns the NATS server and the TLS and credential files that the flags name. Throws USAGE if the
 * URL contains credentials.
 */
export function natsAccess(flags: NatsFlags, url: string): NatsAccess {
  if (url.includes("@")) {
    throw new HearthError("USAGE", "the NATS URL holds credentials, which others could see", {
      fix: "put them into a file: --nats-user, --nats-token, --nats-creds or --nats-nkey",
    });
  }
  const { natsToken, natsUser, natsCreds, natsNkey, natsInbox } = flags;
  const files = [natsToken, natsUser, natsCreds, natsNkey].filter((file) => file !== null);
  if (files.length > 1) throw new HearthError("USAGE", "more than one way to log in to NATS");
  mustPair(flags);
  return {
    url,
    ...(natsInbox === null ? {} : { inboxPrefix: natsInbox }),
    credentials: {
      ...{ tokenFile: natsToken, userFile: natsUser },
      ...{ credsFile: natsCreds, nkeyFile: natsNkey },
    },
    tls: { caFile: flags.ca, certFile: flags.cert, keyFile: flags.key },
  };
}

type HttpFlags = Pick<ConnectionFlags, "api" | "tokenFile" | "ca" | "cert" | "key"> & {
  /** Absent for routers, which have no socket. */
  readonly socket?: string | null;
};

export async function openHttp(
  flags: HttpFlags,
  clock: Clock,
  { issuer = null, encoding = "json", signingSeed = null }: SignedSendOptions = {},
): Promise<HttpControlClient> {
  const tls = await tlsOf(flags);
  const socket = socketOf(flags);
  return connectHttp({
    url: flags.api ?? API_URL,
    ...(flags.tokenFile === null ? {} : { token: await firstLine(flags.tokenFile) }),
    ...(Object.keys(tls).length === 0 ? {} : { tls }),
    ...(issuer === null ? {} : { issuer }),
    ...(signingSeed === null ? {} : { signingSeed }),
    ...(socket === null ? {} : { socket }),
    clock,
    encoding,
  });
}

/**
 * Returns the Unix socket to connect to; null for TCP. Throws USAGE if flags contradict each other.
 */
function socketOf({ socket, api, tokenFile }: HttpFlags): string | null {
  if (socket === undefined) return null;
  const isElsewhere = api !== null || tokenFile !== null;
  if (socket === null) return !isElsewhere && isUsable(API_SOCKET) ? API_SOCKET : null;
  if (!isElsewhere) return socket;
  throw new HearthError("USAGE", "--socket excludes --api and --token-file");
}

/** Returns whether the socket exists and this user may connect to it. */
function isUsable(path: string): boolean {
  try {
    accessSync(path, constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

async function tlsOf(flags: Pick<ConnectionFlags, "ca" | "cert" | "key">): Promise<TlsMaterial> {
  mustPair(flags);
  return {
    ...(flags.ca === null ? {} : { ca: await fileText(flags.ca) }),
    ...(flags.cert === null ? {} : { cert: await fileText(flags.cert) }),
    ...(flags.key === null ? {} : { key: await fileText(flags.key) }),
  };
}

function mustPair({ cert, key }: Pick<ConnectionFlags, "cert" | "key">): void {
  if ((cert === null) === (key === null)) return;
  throw new HearthError("USAGE", "--cert and --key must be given together");
}

async function firstLine(path: string): Promise<string> {
  const line = (await fileText(path)).split("\n", 1)[0].trim();
  // The token is sent in an HTTP header and must never be printed.
  if (/^[\x21-\x7e]{1,4096}$/.test(line)) return line;
  throw new HearthError("USAGE", `the first line of ${path} is empty or not printable`);
}

export const API_URL = "http://127.0.0.1:7171";
/** Default path of the agent's API socket. */
const API_SOCKET = "/run/hearth/api.sock";
const DAY_MS = 86_400_000;
const deadlineKind = durationKind({ min: 1, max: DAY_MS });

/** Flags for the TLS files and credentials of a NATS connection. */
export const natsFlags = {
  ca: optional(fileKind, "CA certificates to trust, PEM"),
  cert: optional(fileKind, "client certificate, PEM"),
  key: optional(fileKind, "its private key, PEM"),
  natsCreds: optional(fileKind, "credentials file for NATS"),
  natsNkey: optional(fileKind, "file with the NKey seed for NATS"),
  natsToken: optional(fileKind, "file with the token for NATS"),
  natsUser: optional(fileKind, "file with user and password for NATS, on two lines"),
  natsInbox: optional(textKind("PREFIX"), "prefix of reply subjects (default _INBOX)"),
};

/** Connection flags of every `hearth ctl` command that talks to an agent. */
export const connectionFlags = {
  socket: optional(
    textKind("PATH"),
    `Unix socket of the agent (default ${API_SOCKET}, if it is there)`,
  ),
  api: optional(urlKind, `HTTP address of the agent, instead of --socket (default ${API_URL})`),
  tokenFile: optional(fileKind, "file with the bearer token for --api"),
  nats: optional(urlKind, "NATS server to send the command through, instead of --api"),
  ...natsFlags,
  worker: optional(textKind("ID"), "id of the worker; required with --nats, else verified"),
  deadline: withDefault(deadlineKind, 30_000, "how long to wait for an answer"),
  json: jsonFlag,
};

/** Flags of commands that only read from an agent. */
export const readFlags = {
  socket: connectionFlags.socket,
  api: connectionFlags.api,
  tokenFile: connectionFlags.tokenFile,
  ca: connectionFlags.ca,
  cert: connectionFlags.cert,
  key: connectionFlags.key,
  nats: optional(urlKind, "not supported here: this query needs HTTP"),
  deadline: connectionFlags.deadline,
  json: jsonFlag,
};

const ROUTER_URL = "http://127.0.0.1:7181";

const { socket: _, ...httpFlags } = readFlags;

/** Flags of commands that query a router. */
export const routerFlags = {
  ...httpFlags,
  api: withDefault(urlKind, ROUTER_URL, "HTTP address of the router"),
};

/** Flags of commands that send a control command. */
export const commandFlags = {
  ...connectionFlags,
  broadcast: toggle("send the command to all workers; only with --nats"),
  issuer: optional(nameKind, "issuer of the command; defaults to the token's name"),
  id: optional(
    textKind("TEXT"),
    "id of the command; repeating a command with the same id has no further effect",
  ),
  sign: optional(fileKind, "file with the NKey seed that signs the command; needs --issuer"),
  ownSubject: toggle("publish on the subject of --issuer; only with --nats"),
  encoding: withDefault(choiceKind(ENCODINGS), "json", "encoding of the command"),
};

/** Flags of commands on the pins and leases of one owner. */
export const ownedFlags = {
  ...commandFlags,
  owner: optional(nameKind, "owner of the pins; defaults to the issuer"),
};

const wholeSeconds = durationKind({ min: 1_000, multiple: 1_000 });

/** Parses a duration of whole seconds, at least 1. The value is in seconds. */
export const seconds: Kind<number> = {
  ...wholeSeconds,
  read(given) {
    const read = wholeSeconds.read(given);
    return read.ok ? { ok: true, value: read.value / 1_000 } : read;
  },
  write: (value) => `${value}s`,
};

/**
 * Returns the workers that answer a discovery request within `ms` milliseconds. Returns null and
 * prints the error if NATS is unreachable.
 */
export async function discover(
  client: ControlClient,
  { name, io }: { readonly name: string; readonly io: Io },
  ms: number,
  signal: AbortSignal,
): Promise<readonly FoundWorker[] | null> {
  try {
    return await client.workers(ms, signal);
  } catch (thrown) {
    if (!(thrown instanceof HearthError) || thrown.code !== "DEADLINE") throw thrown;
    io.err.write(`hearth ${name}: ${plain(thrown.message, Infinity)}\n`);
    return null;
  }
}

const UNAUTHORIZED = 401;

/**
 * Returns the message for a request that HTTP refused. If the token is missing, the message names
 * the flag to use.
 */
export function refusalText(
  { tokenFile }: { readonly tokenFile: string | null },
  status: number | null,
  why: string,
): string {
  if (status !== UNAUTHORIZED) return plain(why, Infinity);
  return tokenFile === null
    ? "the agent needs a bearer token: give --token-file FILE"
    : `the agent refused the token in ${tokenFile}: give --token-file with another`;
}
