import { listenKind } from "../address-kinds.ts";
import {
  booleanKind,
  choiceKind,
  durationKind,
  integerKind,
  type Kind,
  pathKind,
  sizeKind,
} from "../kinds.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";
import { groupKind } from "./engine.ts";

/** PATH_MAX of Linux with the NUL at its end left out. */
const PATH_BYTES_MAX = 4095;

/** What a caller may do; each contains those before it. */
const roleKind = choiceKind(["read", "operate", "purge"]);

/** A file that is read at the start. */
function file(key: string, example: string, doc: string) {
  const kind = pathKind({ bytesMax: PATH_BYTES_MAX, example });
  return optional({ key, kind, reload: false, doc, example });
}

const tokenFile = file(
  "token_file",
  "/etc/hearth/token",
  "A file whose first line is a bearer token that may do everything. With it every request needs " +
    "a token, apart from `/healthz` and `/readyz`. Keep it readable for this process alone. " +
    "SIGHUP reads it again.",
);

const tokensFile = file(
  "tokens_file",
  "/etc/hearth/tokens",
  "A file of bearer tokens for several callers: lines of a name, a role (`read`, `operate` or " +
    "`purge`) and a token; lines that begin with # are notes. The name goes into the audit log. " +
    "SIGHUP reads it again.",
);

const tlsCertFile = file(
  "tls_cert_file",
  "/etc/hearth/tls.pem",
  "The server's certificate with those that signed it, in PEM: with it the server speaks HTTPS.",
);

const tlsKeyFile = file(
  "tls_key_file",
  "/etc/hearth/tls.key",
  "The private key of `tls_cert_file`, in PEM. Keep it readable for this process alone.",
);

const tlsClientCaFile = file(
  "tls_client_ca_file",
  "/etc/hearth/clients.pem",
  "Certificates, in PEM, of those who sign certificates for callers: with it a caller without " +
    "one is not let in, not even for `/healthz`. A caller may send a token as well and has its " +
    "role then.",
);

const tlsClientRole = withDefault({
  key: "tls_client_role",
  kind: roleKind,
  standard: "read",
  reload: false,
  doc: "What callers may do who show a certificate and no token; see `tls_client_ca_file`.",
});

/** `sun_path` holds 108 bytes with the NUL at its end (unix(7)). */
const SOCKET_PATH_BYTES_MAX = 107;
const SOCKET_EXAMPLE = "/run/hearth/api.sock";
const socketPath = pathKind({ bytesMax: SOCKET_PATH_BYTES_MAX, example: SOCKET_EXAMPLE });

/** A path, or `off`: null. */
const socketKind: Kind<string | null> = {
  name: "path or off",
  range: `"off", or ${socketPath.range}`,
  read(raw) {
    if (raw === "off") return { ok: true, value: null };
    const read = socketPath.read(raw);
    return read.ok ? read : { ...read, instead: `${read.instead}; or "off"` };
  },
  write: (path) => path ?? "off",
};

const socket: KeySpec<string | null> = {
  key: "socket",
  kind: socketKind,
  standard: {
    is: "derived",
    words: "`api.sock` beside an `engine.socket` of the name `engine.sock`, else `off`",
    needs: ["engine.socket"],
    from({ value }) {
      const engine = value<string>("engine.socket");
      return engine.endsWith("/engine.sock") ? engine.replace(/engine\.sock$/, "api.sock") : null;
    },
  },
  reload: false,
  doc:
    "The Unix socket of the same HTTP API, on which the kernel says who calls: root and the " +
    "agent's user may do everything, members of `socket_group` what `socket_role` says. `hearth " +
    "ctl` uses it. It gets mode 0660.",
  example: SOCKET_EXAMPLE,
};

const socketGroup = optional({
  key: "socket_group",
  kind: groupKind,
  reload: false,
  doc:
    "The group that owns `socket`. Unset: that of the engine socket, `engine.socket_group`, or " +
    "the group the agent runs under.",
  example: "hearth-ops",
});

const socketRole = withDefault({
  key: "socket_role",
  kind: roleKind,
  standard: "operate",
  reload: false,
  doc: "What callers on `socket` may do who are neither root nor the agent's user.",
});

/** Where the server listens; each process of Hearth has a port of its own. */
export function apiListen(port: number, what: string) {
  return withDefault({
    key: "listen",
    kind: listenKind,
    standard: `127.0.0.1:${port}`,
    reload: false,
    doc:
      `Where the HTTP server (${what}) listens. Any address other than ` +
      "loopback needs `token_file`, `tokens_file` or `tls_client_ca_file`. Port 0 takes a free " +
      "one and says which in the log.",
  });
}

/** Who may speak to the server. `roles`: what each of them may do. */
export function apiAccessKeys(roles: string) {
  const loopbackRole = withDefault({
    key: "loopback_role",
    kind: roleKind,
    standard: "operate",
    reload: false,
    doc:
      "What callers without credentials may do while none are asked for, which is on loopback " +
      `alone: ${roles}.`,
  });
  return {
    loopbackRole,
    tokenFile,
    tokensFile,
    tlsCertFile,
    tlsKeyFile,
    tlsClientCaFile,
    tlsClientRole,
  };
}

/** How much one server takes at a time. */
export function apiLimitKeys(budget: string) {
  return {
    connectionsMax: withDefault({
      key: "connections_max",
      kind: integerKind({ min: 8, max: 1_000_000 }),
      standard: 1_024,
      reload: false,
      doc:
        "Connections to this server. Beyond it idle ones are closed, and requests that would " +
        "need more are answered 503. Each takes a file descriptor.",
    }),
    bodyBudgetBytes: withDefault({
      key: "body_budget",
      kind: sizeKind({ min: 2 ** 20, max: 2 ** 40, example: budget }),
      standard: budget,
      reload: false,
      doc:
        "Bytes of all request bodies together. A body without room is answered 503 with " +
        "`Retry-After`; slow ones that are still arriving are ended first.",
    }),
    bodyTimeoutMs: withDefault({
      key: "body_timeout",
      kind: durationKind({ min: 100, max: 3_600_000, example: "10s" }),
      standard: "10s",
      reload: false,
      doc:
        "How long a request body may take to arrive. A slower one is answered 408, and its " +
        "connection is closed.",
    }),
  };
}

export const apiSection = section("The HTTP server for people and monitoring.", {
  listen: apiListen(7171, "health, metrics, status, commands"),
  socket,
  socketGroup,
  socketRole,
  ...apiAccessKeys(
    "`read` shows, `operate` also pins, pauses and warms, `purge` also removes blocks",
  ),
  ...apiLimitKeys("64MiB"),
  flushByGet: withDefault({
    key: "flush_by_get",
    kind: booleanKind,
    standard: false,
    reload: false,
    doc:
      "Whether `GET /flush_cache` empties the cache as SGLang's server does. A browser sends a " +
      "GET for an image of any page: leave it off unless a program needs it, and use POST.",
  }),
});
