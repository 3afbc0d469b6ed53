import { ENCODINGS } from "../../control/client/index.ts";
import { jsonFlag, optional, toggle, withDefault } from "../flags.ts";
import { choice, duration, type Kind, text } from "../kinds.ts";

export const API_URL = "http://127.0.0.1:7171";
/** The agent's own, where its configuration names no other. */
export const API_SOCKET = "/run/hearth/api.sock";
const DAY_MS = 86_400_000;
const deadlineKind = duration({ min: 1, max: DAY_MS });

/** How a NATS server is spoken to. */
export const natsFlags = {
  ca: optional(text("FILE"), "certificates to believe, PEM"),
  cert: optional(text("FILE"), "certificate to show, PEM"),
  key: optional(text("FILE"), "its private key, PEM"),
  natsCreds: optional(text("FILE"), "credentials file for NATS"),
  natsNkey: optional(text("FILE"), "file with the NKey seed for NATS"),
  natsToken: optional(text("FILE"), "file with the token for NATS"),
  natsUser: optional(text("FILE"), "file with user and password for NATS, on two lines"),
  natsInbox: optional(text("PREFIX"), "how subjects of answers begin (default _INBOX)"),
};

/** Where the agent is and how it is spoken to: flags of every `hearth ctl` command. */
export const connectionFlags = {
  socket: optional(
    text("PATH"),
    `Unix socket of the agent (default ${API_SOCKET}, if it is there)`,
  ),
  api: optional(text("URL"), `HTTP address of the agent, instead (default ${API_URL})`),
  tokenFile: optional(text("FILE"), "file with the bearer token for --api"),
  nats: optional(text("URL"), "NATS server to send it through, instead of --api"),
  ...natsFlags,
  worker: optional(text("ID"), "the worker to speak to; with --nats needed, else checked"),
  deadline: withDefault(deadlineKind, 30_000, "how long to wait for an answer"),
  json: jsonFlag,
};

/** Of those that read and send no command. */
export const readFlags = {
  socket: connectionFlags.socket,
  api: connectionFlags.api,
  tokenFile: connectionFlags.tokenFile,
  ca: connectionFlags.ca,
  cert: connectionFlags.cert,
  key: connectionFlags.key,
  nats: optional(text("URL"), "not here: NATS carries commands, this is asked over HTTP alone"),
  deadline: connectionFlags.deadline,
  json: jsonFlag,
};

export const ROUTER_URL = "http://127.0.0.1:7181";

const { socket: _, ...httpFlags } = readFlags;

/** Of those that ask a router. */
export const routerFlags = {
  ...httpFlags,
  api: withDefault(text("URL"), ROUTER_URL, "HTTP address of the router"),
};

/** Of those that send a command. */
export const commandFlags = {
  ...connectionFlags,
  broadcast: toggle("send it to all workers; only with --nats"),
  issuer: optional(text("NAME"), "who sends it, instead of the token's name"),
  id: optional(text("TEXT"), "id of the command; the same one again changes nothing twice"),
  sign: optional(text("FILE"), "file with the NKey seed that signs it; wants --issuer"),
  ownSubject: toggle("publish it on the subject of --issuer alone; only with --nats"),
  encoding: withDefault(choice(ENCODINGS), "json", "how it travels"),
};

/** Of those that send a command about somebody's pins. */
export const ownedFlags = {
  ...commandFlags,
  owner: optional(text("NAME"), "whose pins; the issuer's unless given"),
};

/** The member `owner`, where one is named. */
export function ownerOf({ owner }: { readonly owner: string | null }): { owner?: string } {
  return owner === null ? {} : { owner };
}

/** A duration in whole seconds, at least one; the value is in seconds. */
export const seconds: Kind<number> = {
  placeholder: "DURATION",
  read(given) {
    const read = duration({ min: 1_000, max: Number.MAX_SAFE_INTEGER }).read(given);
    if (!read.ok) return read;
    if (read.value % 1_000 !== 0) return { ok: false, why: "wants whole seconds" };
    return { ok: true, value: read.value / 1_000 };
  },
  show: (value) => `${value}s`,
};
