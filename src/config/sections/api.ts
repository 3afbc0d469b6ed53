import { booleanKind, choiceKind, orWord, pathKind } from "../../core/index.ts";
import { listenKind } from "../address-kinds.ts";
import { type KeySpec, optional, optionalPath, section, withDefault } from "../spec.ts";
import { groupKind } from "./engine.ts";

/** Roles of a client; each role includes the roles before it. */
const roleKind = choiceKind(["read", "operate", "purge"]);

const tokenFile = optionalPath(
  "token_file",
  "/etc/hearth/token",
  "A file whose first line is a bearer token with the role `purge`. If set, every request " +
    "except `/healthz` and `/readyz` needs a token. Only this process should be able to read the " +
    "file. SIGHUP reloads it.",
);

const tokensFile = optionalPath(
  "tokens_file",
  "/etc/hearth/tokens",
  "A file of bearer tokens for several clients. Each line holds a name, a role (`read`, " +
    "`operate` or `purge`) and a token; lines that begin with # are comments. The audit log " +
    "records the name. SIGHUP reloads the file.",
);

const tlsCertFile = optionalPath(
  "tls_cert_file",
  "/etc/hearth/tls.pem",
  "The server's certificate chain in PEM. If set, the server uses HTTPS.",
);

const tlsKeyFile = optionalPath(
  "tls_key_file",
  "/etc/hearth/tls.key",
  "The private key of `tls_cert_file` in PEM. Only this process should be able to read it.",
);

const tlsClientCaFile = optionalPath(
  "tls_client_ca_file",
  "/etc/hearth/clients.pem",
  "CA certificates in PEM that sign client certificates. If set, a client without a valid " +
    "certificate is refused, even for `/healthz`. A client that also sends a token gets the role " +
    "of the token.",
);

const tlsClientRole = withDefault({
  key: "tls_client_role",
  kind: roleKind,
  defaultValue: "read",
  doc: "Role of clients that present a certificate and no token; see `tls_client_ca_file`.",
});

/** `sun_path` holds 108 bytes with the NUL at its end (unix(7)). */
const SOCKET_PATH_BYTES_MAX = 107;
const SOCKET_EXAMPLE = "/run/hearth/api.sock";
const socket: KeySpec<string | null> = {
  key: "socket",
  kind: orWord("off", null, pathKind({ bytesMax: SOCKET_PATH_BYTES_MAX, example: SOCKET_EXAMPLE })),
  defaultValue: {
    is: "derived",
    words:
      "`api.sock` in the folder of `engine.socket` if that socket is named `engine.sock`, else " +
      "`off`",
    needs: ["engine.socket"],
    from({ value }) {
      const engine = value<string>("engine.socket");
      return engine.endsWith("/engine.sock") ? engine.replace(/engine\.sock$/, "api.sock") : null;
    },
  },
  doc:
    "The Unix socket of the same HTTP API. The kernel reports the user of each client: root and " +
    "the agent's user have the role `purge`, members of `socket_group` have the role " +
    "`socket_role`. `hearth ctl` uses this socket. Its mode is 0660.",
  example: SOCKET_EXAMPLE,
};

/** Listen address of the server; each Hearth process has its own port. */
export function apiListen(port: number, what: string) {
  return withDefault({
    key: "listen",
    kind: listenKind,
    defaultValue: `127.0.0.1:${port}`,
    doc:
      `Listen address of the HTTP server (${what}). An address other than loopback needs ` +
      "`token_file`, `tokens_file` or `tls_client_ca_file`. Port 0 picks a free port; the log " +
      "names it.",
  });
}

/** Access control of a server. `roles` describes what each role may do. */
export function apiAccessKeys(roles: string) {
  const loopbackRole = withDefault({
    key: "loopback_role",
    kind: roleKind,
    defaultValue: "operate",
    doc:
      "Role of clients without credentials if none are required, which is possible on loopback " +
      `only: ${roles}.`,
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

export const apiSection = section("HTTP API: health, metrics, status and commands.", {
  listen: apiListen(7171, "health, metrics, status, commands"),
  socket,
  socketGroup: optional({
    key: "socket_group",
    kind: groupKind,
    doc:
      "The group that owns `socket`. If unset: `engine.socket_group`, or the group of the agent's " +
      "process.",
    example: "hearth-ops",
  }),
  socketRole: withDefault({
    key: "socket_role",
    kind: roleKind,
    defaultValue: "operate",
    doc: "Role of clients on `socket` that are neither root nor the agent's user.",
  }),
  ...apiAccessKeys(
    "`read` shows, `operate` also pins, pauses and warms, `purge` also removes blocks",
  ),
  flushByGet: withDefault({
    key: "flush_by_get",
    kind: booleanKind,
    defaultValue: false,
    doc:
      "Whether `GET /flush_cache` empties the cache, as in SGLang's server. Any web page can " +
      "make a browser send a GET, so leave this off unless a program needs it, and use POST.",
  }),
});
