import { pathKind } from "../kinds.ts";
import { listenKind } from "../listen-address.ts";
import { optional, section, withDefault } from "../spec.ts";

/** PATH_MAX of Linux with the NUL at its end left out. */
const PATH_BYTES_MAX = 4095;

const listen = withDefault({
  key: "listen",
  kind: listenKind,
  standard: "127.0.0.1:7171",
  reload: false,
  doc:
    "Where the HTTP server (health, metrics, status, commands) listens. Any address other than " +
    "loopback needs `token_file`. Port 0 takes a free one and says which in the log.",
});

const tokenFile = optional({
  key: "token_file",
  kind: pathKind({ bytesMax: PATH_BYTES_MAX, example: "/etc/hearth/token" }),
  reload: false,
  doc:
    "A file whose first line is the bearer token that every request must carry, apart from " +
    "`/healthz` and `/readyz`. Keep it readable for the agent alone.",
  example: "/etc/hearth/token",
});

export const apiSection = section("The HTTP server for people and monitoring.", {
  listen,
  tokenFile,
});
