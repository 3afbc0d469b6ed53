import { readFile } from "node:fs/promises";
import {
  type ControlClient,
  connectControl,
  connectHttp,
  type Encoding,
  type HttpControlClient,
  type NatsAccess,
  type TlsMaterial,
} from "../../client/index.ts";
import { type Clock, HearthError, messageOf } from "../../core/index.ts";
import { API_URL } from "./flags.ts";

export interface ConnectionFlags {
  readonly api: string | null;
  readonly tokenFile: string | null;
  readonly ca: string | null;
  readonly cert: string | null;
  readonly key: string | null;
  readonly nats: string | null;
  readonly natsCreds: string | null;
  readonly natsNkey: string | null;
  readonly natsToken: string | null;
  readonly natsUser: string | null;
}

export interface Speaking {
  readonly issuer?: string | null;
  readonly encoding?: Encoding;
}

/** Over HTTP where no NATS server is named. Throws USAGE for flags that contradict each other. */
export async function openControl(
  flags: ConnectionFlags,
  clock: Clock,
  speaking: Speaking = {},
): Promise<ControlClient> {
  const { nats } = flags;
  if (nats === null) return openHttp(flags, clock, speaking);
  if (flags.api !== null) throw new HearthError("USAGE", "--api and --nats exclude each other");
  if (flags.tokenFile !== null) {
    throw new HearthError("USAGE", "--token-file is for --api", {
      fix: "give --nats-token, --nats-user, --nats-creds or --nats-nkey",
    });
  }
  const { issuer = null, encoding = "json" } = speaking;
  return openNats(flags, nats, clock, { issuer, encoding });
}

type NatsFlags = Pick<
  ConnectionFlags,
  "ca" | "cert" | "key" | "natsCreds" | "natsNkey" | "natsToken" | "natsUser"
>;

/** Throws USAGE for a URL that is none, or has a secret in it. */
export function openNats(
  flags: NatsFlags,
  url: string,
  clock: Clock,
  { issuer = null, encoding = "json" }: Speaking = {},
): ControlClient {
  const by = issuer === null ? {} : { issuer };
  try {
    return connectControl({ nats: natsAccess(flags, url), clock, encoding, ...by });
  } catch (thrown) {
    if (!(thrown instanceof HearthError) || thrown.code !== "CONFIG_INVALID") throw thrown;
    const { message, fix } = thrown;
    throw new HearthError("USAGE", message, fix === undefined ? {} : { fix });
  }
}

/** The server, and the files that the flags name. Throws USAGE for a URL with a secret in it. */
export function natsAccess(flags: NatsFlags, url: string): NatsAccess {
  if (url.includes("@")) {
    throw new HearthError("USAGE", "the NATS URL holds credentials, which others could see", {
      fix: "put them into a file: --nats-user, --nats-token, --nats-creds or --nats-nkey",
    });
  }
  const { natsToken, natsUser, natsCreds, natsNkey } = flags;
  const files = [natsToken, natsUser, natsCreds, natsNkey].filter((file) => file !== null);
  if (files.length > 1) throw new HearthError("USAGE", "more than one way to log in to NATS");
  mustPair(flags);
  return {
    url,
    credentials: {
      ...{ tokenFile: natsToken, userFile: natsUser },
      ...{ credsFile: natsCreds, nkeyFile: natsNkey },
    },
    tls: { caFile: flags.ca, certFile: flags.cert, keyFile: flags.key },
  };
}

type HttpFlags = Pick<ConnectionFlags, "api" | "tokenFile" | "ca" | "cert" | "key">;

export async function openHttp(
  flags: HttpFlags,
  clock: Clock,
  { issuer = null, encoding = "json" }: Speaking = {},
): Promise<HttpControlClient> {
  const tls = await tlsOf(flags);
  return connectHttp({
    url: flags.api ?? API_URL,
    ...(flags.tokenFile === null ? {} : { token: await firstLine(flags.tokenFile) }),
    ...(Object.keys(tls).length === 0 ? {} : { tls }),
    ...(issuer === null ? {} : { issuer }),
    clock,
    encoding,
  });
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
  throw new HearthError("USAGE", "--cert and --key belong together");
}

async function fileText(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    throw new HearthError("USAGE", `${path} cannot be read: ${messageOf(cause)}`, { cause });
  }
}

async function firstLine(path: string): Promise<string> {
  const line = (await fileText(path)).split("\n", 1)[0]!.trim();
  // It goes into a header, and is never shown.
  if (/^[\x21-\x7e]{1,4096}$/.test(line)) return line;
  throw new HearthError("USAGE", `the first line of ${path} is empty, or no printable text`);
}
