import { booleanKind, choiceKind, listKind, patternKind } from "../../core/index.ts";
import { natsUrlKind } from "../address-kinds.ts";
import { optional, optionalPath, section, withDefault } from "../spec.ts";

const INBOX = /^[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64}){0,7}$/;
const INBOX_WORDS = "letters, digits, - and _, separated by dots";

const inboxKind = patternKind<string>({
  name: "subject prefix",
  pattern: INBOX,
  words: INBOX_WORDS,
  example: "_INBOX_gpu-01",
});

/** TLS files and credentials of a NATS connection, for agents and routers. */
export function natsFileKeys(who: "agent" | "router") {
  return {
    caFile: optionalPath(
      "ca_file",
      "/etc/hearth/nats-ca.pem",
      "CA certificates in PEM that verify the server, instead of the system's.",
    ),
    certFile: optionalPath(
      "cert_file",
      "/etc/hearth/nats.pem",
      `The certificate that this ${who} presents to servers that request one.`,
    ),
    keyFile: optionalPath(
      "key_file",
      "/etc/hearth/nats.key",
      `The private key of \`cert_file\`. Only the ${who} should be able to read it.`,
    ),
    credsFile: optionalPath(
      "creds_file",
      `/etc/hearth/${who}.creds`,
      "A credentials file in the format that `nsc` writes.",
    ),
    nkeyFile: optionalPath(
      "nkey_file",
      `/etc/hearth/${who}.nk`,
      "A file that holds the seed of a user's nkey (SU...).",
    ),
    tokenFile: optionalPath(
      "token_file",
      "/etc/hearth/nats-token",
      "A file whose first line is the server's token.",
    ),
    userFile: optionalPath(
      "user_file",
      "/etc/hearth/nats-user",
      "A file with the user's name on its first line and the password on its second.",
    ),
  };
}

/** Reply subjects: of answers to this process, and of requests that this process answers. */
export function natsInboxKeys(who: "agent" | "router") {
  return {
    inboxPrefix: withDefault({
      key: "inbox_prefix",
      kind: inboxKind,
      defaultValue: "_INBOX",
      doc:
        "Prefix of the reply subjects of this process. Give each user of the server its own " +
        `prefix (\`_INBOX.${who}\`) and permission to subscribe to that prefix only, so that no ` +
        "user can read the answers to another.",
    }),
    replyPrefixes: withDefault({
      key: "reply_prefixes",
      kind: listKind(inboxKind, { items: "prefixes" }),
      defaultValue: "_INBOX",
      doc:
        "Prefixes of the reply subjects that this process answers to, separated by commas; " +
        "`_INBOX` includes `_INBOX_router`. A request with another reply subject gets no " +
        "answer.",
    }),
  };
}

const broadcast = withDefault({
  key: "broadcast",
  kind: listKind(
    choiceKind(["Warm", "Prune", "Cache", "Think", "Pause", "RenewLease", "RevokeLease"]),
    { items: "commands", empty: "none" },
  ),
  defaultValue: "Warm,Prune,Cache,Think",
  reload: true,
  doc:
    "Commands to accept from `kv-control-broadcast`, separated by commas, or `none`. A " +
    "broadcast command must make sense on every worker.",
});

const receipts = withDefault({
  key: "receipts",
  kind: booleanKind,
  defaultValue: false,
  doc: "Whether each receipt is also published on `kv-control-receipts-` and the worker's id.",
});

/** Names of streams and buckets that JetStream accepts for all of its objects. */
function nameKind(name: string, example: string) {
  const pattern = /^[A-Za-z0-9_-]{1,64}$/;
  return patternKind<string>({ name, pattern, words: "1 to 64 letters, digits, - and _", example });
}

export const natsSection = section("Commands over NATS.", {
  url: optional({
    key: "url",
    kind: natsUrlKind,
    doc:
      "NATS server for commands and events; several servers are separated by commas, all TCP or " +
      "all WebSocket. If unset, commands come over HTTP only. Credentials belong in a file; " +
      "credentials in the URL (before an @) are never shown.",
    example: "nats://127.0.0.1:4222",
  }),
  ...natsFileKeys("agent"),
  ...natsInboxKeys("agent"),
  role: withDefault({
    key: "role",
    kind: choiceKind(["read", "operate", "purge"]),
    defaultValue: "operate",
    doc:
      "Role of commands over NATS whose issuer has not proved its name: `operate` pins, pauses " +
      "and warms; `purge` also removes blocks. With `purge`, every user with permission to " +
      "publish on this worker's subject may remove its blocks; `control.issuers` restricts that " +
      "to named issuers.",
  }),
  broadcast,
  receipts,
  commandStream: optional({
    key: "command_stream",
    kind: nameKind("stream name", "KV_CONTROL"),
    doc:
      "A JetStream stream, created by the operator, that stores messages on `kv-control-` and " +
      "this worker's id. If set, the agent takes the commands for this worker only from the " +
      "stream, one after the other, including commands sent while the agent was down. The server " +
      "itself answers on the reply subject; the receipt goes to the subject in the header " +
      "`Hearth-Reply`.",
    example: "KV_CONTROL",
  }),
  workersBucket: optional({
    key: "workers_bucket",
    kind: nameKind("bucket name", "kv-workers"),
    doc:
      "A JetStream key-value bucket with a time to live, created by the operator. Each agent " +
      "stores its id, incarnation and version there, so that senders of broadcasts know which " +
      "workers should answer.",
    example: "kv-workers",
  }),
});
