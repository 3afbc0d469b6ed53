import { natsUrlKind } from "../address-kinds.ts";
import {
  booleanKind,
  choiceKind,
  integerKind,
  type Kind,
  namesKind,
  pathKind,
  patternKind,
  sizeKind,
} from "../kinds.ts";
import { quoteText } from "../problems.ts";
import { optional, section, withDefault } from "../spec.ts";

const PATH_BYTES_MAX = 4095;

const INBOX = /^[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64}){0,7}$/;
const INBOX_WORDS = "letters, digits, - and _, with dots between";

const inboxKind = patternKind<string>({
  name: "subject prefix",
  pattern: INBOX,
  words: INBOX_WORDS,
  example: "_INBOX_gpu-01",
});

const inboxListKind: Kind<readonly string[]> = {
  name: "list of subject prefixes",
  range: `${INBOX_WORDS}; with commas between prefixes`,
  read(raw) {
    const instead = 'write prefixes with commas between them, as in "_INBOX,_REPLY"';
    if (typeof raw !== "string") return { ok: false, what: "is not a string", instead };
    const prefixes = raw.split(",").map((prefix) => prefix.trim());
    const wrong = prefixes.find((prefix) => !INBOX.test(prefix));
    if (wrong === undefined) return { ok: true, value: Object.freeze(prefixes) };
    return { ok: false, what: `names ${quoteText(wrong)}, not a subject prefix`, instead };
  },
  write: (prefixes) => prefixes.join(","),
};

/** A file that is read with each connection. */
function file(key: string, example: string, doc: string) {
  const kind = pathKind({ bytesMax: PATH_BYTES_MAX, example });
  return optional({ key, kind, reload: false, doc, example });
}

const url = optional({
  key: "url",
  kind: natsUrlKind,
  reload: false,
  doc:
    "The NATS server that commands come from; several with commas between them, all TCP or all " +
    "WebSocket. Unset: commands come over HTTP alone. Credentials belong in a file; where they " +
    "stand before an @, they are shown nowhere.",
  example: "nats://127.0.0.1:4222",
});

/** How a server is reached and spoken to, for whoever of Hearth it is. */
export function natsFileKeys(who: "agent" | "router") {
  return {
    caFile: file(
      "ca_file",
      "/etc/hearth/nats-ca.pem",
      "Certificates, in PEM, of those who may sign the server's, instead of the system's.",
    ),
    certFile: file(
      "cert_file",
      "/etc/hearth/nats.pem",
      `The certificate this ${who} shows to servers that want to see one.`,
    ),
    keyFile: file(
      "key_file",
      "/etc/hearth/nats.key",
      `The private key of \`cert_file\`. Keep it readable for the ${who} alone.`,
    ),
    credsFile: file(
      "creds_file",
      `/etc/hearth/${who}.creds`,
      "Credentials as `nsc` writes them. Where several are set, token comes first, then user, " +
        "creds, nkey.",
    ),
    nkeyFile: file(
      "nkey_file",
      `/etc/hearth/${who}.nk`,
      "A file that holds the seed of an nkey's user (SU...).",
    ),
    tokenFile: file(
      "token_file",
      "/etc/hearth/nats-token",
      "A file whose first line is the server's token.",
    ),
    userFile: file(
      "user_file",
      "/etc/hearth/nats-user",
      "A file with the user's name on its first line and the password on its second.",
    ),
  };
}

/** Subjects of answers: to this process, and from it to others. */
export function natsInboxKeys(who: "agent" | "router") {
  return {
    inboxPrefix: withDefault({
      key: "inbox_prefix",
      kind: inboxKind,
      standard: "_INBOX",
      reload: false,
      doc:
        "Subjects of answers to this process begin with it and a dot. Give each user of the " +
        `server another one (\`_INBOX.${who}\`) and permission to subscribe it alone, so that no ` +
        "user reads the answers to another.",
    }),
    replyPrefixes: withDefault({
      key: "reply_prefixes",
      kind: inboxListKind,
      standard: "_INBOX",
      reload: false,
      doc:
        "How subjects begin that this process answers to, with commas between them; `_INBOX` " +
        "includes `_INBOX_router`. A message that asks for its answer elsewhere gets none.",
    }),
  };
}

/** What waits while there is no connection. `what` names it. */
export function natsQueueKeys(what: string) {
  return {
    queueMessages: withDefault({
      key: "queue_messages",
      kind: integerKind({ min: 0, max: 10_000_000 }),
      standard: 10_000,
      reload: false,
      doc: `${what} that wait while there is no connection; what comes then is dropped.`,
    }),
    queueBytes: withDefault({
      key: "queue_bytes",
      kind: sizeKind({ min: 0, max: 2 ** 34, example: "16MiB" }),
      standard: "16MiB",
      reload: false,
      doc: `Bytes of the ${what[0]!.toLowerCase()}${what.slice(1)} that wait, at most.`,
    }),
  };
}

const role = withDefault({
  key: "role",
  kind: choiceKind(["read", "operate", "purge"]),
  standard: "operate",
  reload: false,
  doc:
    "What commands over NATS may do whose issuer has not proved its name: `operate` pins, pauses " +
    "and warms, `purge` also removes blocks. With `purge` everybody who may publish on this " +
    "worker's subject may remove its blocks; `control.issuers` gives that to some alone.",
});

const broadcast = withDefault({
  key: "broadcast",
  kind: namesKind(["Warm", "Prune", "Cache", "Think", "Pause", "RenewLease", "RevokeLease"]),
  standard: "Warm,Prune,Cache,Think",
  reload: true,
  doc:
    "Commands that are taken from `kv-control-broadcast`, with commas between them, or `none`. " +
    "A command for all workers should make sense on each of them.",
});

const receipts = withDefault({
  key: "receipts",
  kind: booleanKind,
  standard: false,
  reload: false,
  doc:
    "Whether each receipt is also published on `kv-control-receipts-` and the worker's id, for " +
    "those who watch.",
});

const events = withDefault({
  key: "events",
  kind: booleanKind,
  standard: true,
  reload: false,
  doc:
    "Whether what happens to pins and leases is published on `kv-control-events-` and the " +
    "worker's id.",
});

/** Names of streams and buckets, as JetStream takes them everywhere. */
function nameKind(name: string, example: string) {
  const pattern = /^[A-Za-z0-9_-]{1,64}$/;
  return patternKind<string>({ name, pattern, words: "1 to 64 letters, digits, - and _", example });
}

const commandStream = optional({
  key: "command_stream",
  kind: nameKind("stream name", "KV_CONTROL"),
  reload: false,
  doc:
    "A JetStream stream, made by the operator, that keeps what is published on `kv-control-` and " +
    "this worker's id. Commands for this worker are then taken from there alone, one after the " +
    "other, also those that came while the agent was down. The server answers the reply subject " +
    "itself; a receipt goes where the header `Hearth-Reply` says.",
  example: "KV_CONTROL",
});

const workersBucket = optional({
  key: "workers_bucket",
  kind: nameKind("bucket name", "kv-workers"),
  reload: false,
  doc:
    "A JetStream key-value bucket, made by the operator with a time to live, in which each agent " +
    "keeps its id, incarnation and version, so that senders of broadcasts know who should answer.",
  example: "kv-workers",
});

export const natsSection = section("Commands over NATS.", {
  url,
  ...natsFileKeys("agent"),
  ...natsQueueKeys("Receipts and events"),
  ...natsInboxKeys("agent"),
  role,
  broadcast,
  receipts,
  events,
  commandStream,
  workersBucket,
});
