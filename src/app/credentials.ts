import { readFileSync } from "node:fs";
import {
  type Bus,
  type BusOptions,
  type CredentialFiles,
  checkFiles,
  openBus,
  type TlsFiles,
} from "../bus/index.ts";
import type { Config, RouterConfig } from "../config/index.ts";
import { HearthError, messageOf, userOfSeed } from "../core/index.ts";

/** NATS settings common to agents and routers. */
type NatsConfig = Pick<
  Config["nats"],
  "url" | "tokenFile" | "userFile" | "credsFile" | "nkeyFile" | "caFile" | "certFile" | "keyFile"
>;

interface NatsFiles {
  readonly credentials: CredentialFiles;
  readonly tls: TlsFiles;
}

function natsFilesOf(nats: NatsConfig): NatsFiles {
  const { tokenFile, userFile, credsFile, nkeyFile, caFile, certFile, keyFile } = nats;
  return {
    credentials: { tokenFile, userFile, credsFile, nkeyFile },
    tls: { caFile, certFile, keyFile },
  };
}

/** Opens a connection to the configured NATS servers. Returns null if no server is configured. */
export function openConfiguredBus(
  nats: Config["nats"] | RouterConfig["nats"],
  name: string,
  parts: Pick<BusOptions, "clock" | "random" | "log">,
): Bus | null {
  const { url, inboxPrefix, replyPrefixes } = nats;
  if (url === null) return null;
  return openBus({
    ...{ url, name, inboxPrefix, replyPrefixes },
    ...natsFilesOf(nats),
    ...parts,
  });
}

/**
 * Checks the NATS credential and certificate files. Throws CONFIG_INVALID if one is unreadable or
 * invalid.
 */
export async function checkNatsFiles(nats: NatsConfig): Promise<void> {
  if (nats.url === null) return;
  const { credentials, tls } = natsFilesOf(nats);
  await checkFiles(credentials, tls);
}

const SEED = /\bSU[A-Z2-7]{56}\b/;

/**
 * Reads the seed of the nkey that signs commands. Throws CONFIG_INVALID if the file is unreadable
 * or contains no user seed.
 */
export function readSigningSeed(path: string): string {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${path} cannot be read: ${messageOf(cause)}`, {
      cause,
      fix: "set nats.sign_nkey_file to a file that the router's user can read",
    });
  }
  const seed = SEED.exec(text)?.[0];
  if (seed !== undefined && userOfSeed(seed) !== null) return seed;
  throw new HearthError(
    "CONFIG_INVALID",
    `${path} does not contain the seed of a user nkey (SU...)`,
    {
      fix: "create one with `nk -gen user`",
    },
  );
}

/**
 * Returns the number of a group given by name or number. Throws CONFIG_INVALID if the host has no
 * such group.
 */
export function groupNumber(
  group: string,
  key = "engine.socket_group",
  groupFile = "/etc/group",
): number {
  if (/^[0-9]+$/.test(group)) return Number(group);
  const line = readFileSync(groupFile, "utf8")
    .split("\n")
    .find((entry) => entry.startsWith(`${group}:`));
  const number = line?.split(":")[2];
  if (number !== undefined) return Number(number);
  throw new HearthError("CONFIG_INVALID", `${key}: group "${group}" does not exist`, {
    fix: `create it with groupadd ${group}, or set another group`,
  });
}
